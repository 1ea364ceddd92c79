// The released model at its real size: 360 GB of sparse files, of which only headers are read.
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "store/dense_table.h"
#include "store/source.h"
#include "support/released_config.h"
#include "support/temp_folder.h"

namespace sluice::store {
namespace {

struct Entry {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t bytes = 0;
};

Entry entry(std::string name, std::string dtype, std::vector<std::int64_t> shape) {
  std::uint64_t bytes = dtype == "I64" ? 8 : 2;
  for (const std::int64_t n : shape) bytes *= static_cast<std::uint64_t>(n);
  return {std::move(name), std::move(dtype), std::move(shape), bytes};
}

std::string released_name(const DenseInfo& info) {
  const bool bare = info.name.ends_with("A_log") || info.name.ends_with("dt_bias");
  const bool outside = info.name.starts_with("mtp.") || info.name == "lm_head";
  return (outside ? "" : "model.language_model.") + info.name + (bare ? "" : ".weight");
}

/// All 1658 tensors of model.md 2.1 but the 333 of the vision tower.
std::vector<Entry> text_tensors(const spec::ModelConfig& c) {
  std::vector<Entry> list;
  for (const DenseInfo& info : dense_tensors(c, true)) {
    auto shape = info.shape;
    if (info.kind == DenseKind::kConv) shape = {shape[0], 1, shape[1]};
    list.push_back(entry(released_name(info), "BF16", shape));
  }
  for (std::int64_t i = 0; i < c.record_layers(); ++i) {
    const std::string prefix =
        i < c.layer_count() ? fmt::format("model.language_model.layers.{}", i) : "mtp.layers.0";
    list.push_back(
        entry(prefix + ".mlp.experts.gate_up_proj", "BF16", {c.experts, 2 * c.expert_inter, c.hidden}));
    list.push_back(entry(prefix + ".mlp.experts.down_proj", "BF16", {c.experts, c.hidden, c.expert_inter}));
  }
  for (int s = 0; s < 128; ++s) {
    list.push_back(entry(
        fmt::format("model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_{}.weight", s),
        "BF16", {2500012, 160}));
  }
  return list;
}

/// A file whose header is real and whose data is a hole. False where the file system has no room for holes.
bool write_sparse(const std::filesystem::path& path, const std::vector<Entry>& entries) {
  Json header = Json::object();
  std::uint64_t offset = 0;
  for (const Entry& e : entries) {
    header[e.name] = {{"dtype", e.dtype}, {"shape", e.shape}, {"data_offsets", {offset, offset + e.bytes}}};
    offset += e.bytes;
  }
  const std::string text = dump_json(header);
  const std::uint64_t length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << text;
  out.close();
  std::error_code ec;
  std::filesystem::resize_file(path, sizeof length + length + offset, ec);
  return out.good() && !ec;
}

TEST(ReleasedModel, OpensAtItsRealSize) {
  const Json json = test::released_config();
  const auto config = spec::parse_config(json, "config.json");
  ASSERT_TRUE(config.ok());
  const test::TempFolder folder;
  folder.write("config.json", dump_json(json));
  const std::vector<Entry> tensors = text_tensors(*config);
  EXPECT_EQ(tensors.size(), 1658U - 333U - 3U);
  constexpr std::size_t kFiles = 26;
  for (std::size_t f = 0; f < kFiles; ++f) {
    const auto from = tensors.begin() + static_cast<std::ptrdiff_t>(tensors.size() * f / kFiles);
    const auto to = tensors.begin() + static_cast<std::ptrdiff_t>(tensors.size() * (f + 1) / kFiles);
    const auto path = folder / fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, kFiles);
    if (!write_sparse(path, {from, to})) GTEST_SKIP() << "no large sparse files here";
  }
  const auto source = open_checkpoint(folder.path());
  ASSERT_TRUE(source.ok()) << source.error().message;
  const WeightSource& s = **source;

  const ParameterCounts p = s.parameters();
  EXPECT_EQ(p.mtp, 2607150848U);
  EXPECT_EQ(p.ngram, 320001536U * std::uint64_t{160});
  EXPECT_EQ(p.experts, 48U * 512 * std::uint64_t{3} * 640 * 2560);
  EXPECT_EQ(s.ngram_bytes(1), 102400491520U);
  // All bytes but the vision tower's 333 tensors and the three of the hash: model.md 2.1's total.
  constexpr std::uint64_t kTotal = 359999963128, kHash = (3 + 16 + 16) * 8;
  const std::uint64_t vision = kTotal - kHash - 2 * p.total();
  EXPECT_EQ(vision % 2, 0U);
  EXPECT_NEAR(static_cast<double>(vision / 2), 0.45e9, 0.005e9);

  EXPECT_EQ(s.record_layout().bytes(), 3 * 640 * 2560 * 2);
  std::vector<std::byte> record(static_cast<std::size_t>(s.record_layout().bytes()), std::byte{1});
  ASSERT_TRUE(s.read_record(0, 48, 511, record).ok());
  EXPECT_EQ(record.back(), std::byte{0});
  std::vector<float> rows(2 * 160, 1.0F);
  ASSERT_TRUE(s.read_ngram_rows(1, std::vector<std::int64_t>{320001535, 2500012}, rows).ok());
  EXPECT_EQ(rows, std::vector<float>(2 * 160));
  const auto norm = s.read_dense("layers.47.mlp_hyper_connection.hc_norm");
  ASSERT_TRUE(norm.ok());
  EXPECT_EQ(norm->buffer.as<float>()[10239], 1.0F);  // stored 0, zero-centred
  EXPECT_EQ(s.ngram_hash(1)->rows, 320001536);
}

}  // namespace
}  // namespace sluice::store
