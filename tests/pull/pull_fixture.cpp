#include "pull/pull_fixture.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "base/file.h"
#include "store/manifest.h"
#include "support/edit_model.h"
#include "support/fixtures.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMost = std::uint64_t{1} << 30;

std::string text_of(const fs::path& path) {
  const auto text = read_text_file(path, kMost);
  EXPECT_TRUE(text.ok()) << path;
  return text.ok() ? text.value() : "";
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

}  // namespace

std::string shard_name(std::size_t index, std::size_t shards) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, shards);
}

std::size_t by_layer(const std::string& tensor) {
  if (tensor.starts_with("mtp.")) return kLayerShards - 1;
  const std::size_t at = tensor.find("layers.");
  return at == std::string::npos ? 0 : static_cast<std::size_t>(tensor[at + 7] - '0') + 1;
}

void split_model(const fs::path& folder, std::size_t shards, const ShardOf& shard_of) {
  const auto all = Fixture::load(folder / "model.safetensors").tensors();
  std::size_t total = 0;
  for (const auto& [name, tensor] : all) total += tensor.bytes.size();
  std::vector<TensorMap> parts(shards);
  Json map = Json::object();
  std::size_t before = 0;
  for (const auto& [name, tensor] : all) {
    const std::size_t shard = shard_of ? shard_of(name) : before * shards / total;
    before += tensor.bytes.size();
    parts[shard][name] = tensor;
    map[name] = shard_name(shard, shards);
  }
  for (std::size_t i = 0; i < shards; ++i) save_tensors(folder / shard_name(i, shards), parts[i]);
  std::ofstream(folder / "model.safetensors.index.json") << dump_json(Json{{"weight_map", map}});
  fs::remove(folder / "model.safetensors");
}

pull::PullOptions quick_pull(FakeClock& clock) {
  pull::PullOptions options;
  options.download.http = quick(clock);
  options.download.workers = 3;
  options.download.range_bytes = 100000;
  options.pack.jobs = 3;
  return options;
}

void PullFixture::serve(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = entry.path().lexically_relative(folder).string();
    server_.add(name, text_of(entry.path()), name.ends_with(".safetensors"));
  }
}

void PullFixture::serve_model(RandomModel model, std::size_t shards, const ShardOf& shard_of) {
  fs::create_directories(source_);
  if (model.config.is_null()) model.config = tiny_config();
  write_random_model(source_, model);
  if (shards > 1) split_model(source_, shards, shard_of);
  std::ofstream(source_ / "tokenizer.json") << R"({"a": "tokenizer"})";
  std::ofstream(source_ / "LICENSE") << "MIT";
  serve(source_);
  server_.add("README.md", "not of the model", false);
  server_.add("original/weights.bin", "not of it either");
}

void PullFixture::expect_pulled(const pull::PullOptions& options) {
  const auto report = pull(options);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->commit, kCommit);
  EXPECT_FALSE(report->pack.was_there);
  expect_store(options.pack);
}

void PullFixture::expect_store(const pack::PackOptions& options) {
  const fs::path local = folder_ / "local";
  fs::remove_all(local);
  const auto source = store::open_checkpoint(source_);
  ASSERT_TRUE(source.ok()) << source.error().message;
  const auto packed = pack::pack(**source, local, options);
  ASSERT_TRUE(packed.ok()) << packed.error().message;
  ASSERT_TRUE(fs::exists(target_));
  EXPECT_EQ(names_in(target_), names_in(local));
  for (const std::string& name : names_in(local)) {
    if (name == "manifest.json") continue;
    EXPECT_TRUE(text_of(target_ / name) == text_of(local / name)) << name;
  }
  auto got = store::parse_manifest(text_of(target_ / "manifest.json"), "pulled");
  const auto wanted = store::parse_manifest(text_of(local / "manifest.json"), "local");
  ASSERT_TRUE(got.ok()) << got.error().message;
  ASSERT_TRUE(wanted.ok()) << wanted.error().message;
  EXPECT_EQ(got->source_name, "acme/tiny");
  EXPECT_EQ(got->source_revision, kCommit);
  got->source_name = wanted->source_name;
  got->source_revision = wanted->source_revision;
  EXPECT_EQ(store::manifest_text(*got), store::manifest_text(*wanted));
  const auto opened = store::open_store(target_);
  EXPECT_TRUE(opened.ok()) << opened.error().message;
}

void PullFixture::expect_no_model() const {
  EXPECT_FALSE(store::is_store(target_));
  EXPECT_FALSE(store::open_source(target_).ok());
  EXPECT_FALSE(store::is_store(target_ / ".packing"));
}

std::uint64_t PullFixture::content_served(const std::string& shard) const {
  constexpr std::uint64_t kHeader = 65536;
  std::uint64_t bytes = 0;
  for (const HubRequest& request : server_.requests()) {
    if (request.file != shard || !request.cdn || !request.range) continue;
    const std::uint64_t count = request.range->second - request.range->first + 1;
    if (count > kHeader) bytes += count;
  }
  return bytes;
}

}  // namespace sluice::test
