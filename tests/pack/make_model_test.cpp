// Models of random weights, as stores and as checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>

#include "decode/logits_run.h"
#include "pack/checkpoint_writer.h"
#include "pack/pack.h"
#include "pack/random_source.h"
#include "pack/verify.h"
#include "quant/record.h"
#include "spec/geometries.h"
#include "store/packed_store.h"
#include "support/loaded_model.h"
#include "support/temp_folder.h"

namespace sluice::pack {
namespace {

namespace fs = std::filesystem;
using spec::Format;

RandomModel tiny(std::uint64_t seed = 1) {
  return {.config = spec::named_geometry("tiny").value(), .seed = seed};
}

PackOptions keep_all() {
  PackOptions options;
  options.keep_experts = true;
  options.dense = store::DenseBits::kSource;
  return options;
}

std::unique_ptr<RandomSource> make(const RandomModel& model) {
  auto source = RandomSource::create(model);
  EXPECT_TRUE(source.ok()) << source.error().message;
  return std::move(source).value();
}

void write_store(const RandomModel& model, const fs::path& folder, PackOptions options = keep_all()) {
  const auto packed = pack(*make(model), folder, options);
  ASSERT_TRUE(packed.ok()) << packed.error().message;
}

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = content(entry.path());
  }
  return files;
}

/// The names of the weights, not what the manifest says of where they come from.
constexpr std::array<const char*, 4> kData = {"dense.bin", "experts.q4.bin", "experts.q4.sums", "ngram.bin"};

std::vector<float> values_of(const store::WeightSource& source, std::size_t tier) {
  const auto& layout = source.record_layouts()[tier];
  std::vector<std::byte> record(static_cast<std::size_t>(layout.bytes()));
  EXPECT_TRUE(source.read_record(tier, 1, 2, record).ok());
  std::vector<float> values(static_cast<std::size_t>(quant::record_weights(layout)));
  EXPECT_TRUE(quant::record_values(layout, record, values).ok());
  return values;
}

struct Spread {
  double mean = 0, deviation = 0;
};

Spread spread_of(std::span<const float> values) {
  Spread spread;
  for (const float v : values) spread.mean += v;
  spread.mean /= static_cast<double>(values.size());
  for (const float v : values) spread.deviation += (v - spread.mean) * (v - spread.mean);
  spread.deviation = std::sqrt(spread.deviation / static_cast<double>(values.size()));
  return spread;
}

TEST(MakeModel, TheStoreDoesNotDependOnTheNumberOfThreads) {
  const test::TempFolder folder;
  RandomModel model = tiny();
  model.experts = {Format::kQ2, Format::kQ4, Format::kQ3};
  PackOptions options = keep_all();
  options.jobs = 1;
  write_store(model, folder / "one", options);
  options.jobs = 5;
  write_store(model, folder / "five", options);
  const auto one = files_of(folder / "one");
  EXPECT_THAT(one, testing::Contains(testing::Key("experts.q2.bin")));
  EXPECT_EQ(one, files_of(folder / "five"));
  const auto verified = verify_store(folder / "one", false, 1);
  ASSERT_TRUE(verified.ok());
  EXPECT_EQ(verified->damaged, 0U);
}

TEST(MakeModel, SeedsGiveOtherWeightsEverywhere) {
  const test::TempFolder folder;
  write_store(tiny(1), folder / "a");
  write_store(tiny(2), folder / "b");
  for (const char* name : kData)
    EXPECT_NE(content(folder / "a" / name), content(folder / "b" / name)) << name;
}

TEST(MakeModel, ExpertsAndLayersDiffer) {
  const auto source = make(tiny());
  std::vector<std::string> seen;
  for (std::int64_t layer = 0; layer < 5; ++layer) {
    for (std::int64_t expert = 0; expert < 16; ++expert) {
      std::string record(static_cast<std::size_t>(source->record_layout().bytes()), '\0');
      ASSERT_TRUE(source->read_record(0, layer, expert, std::as_writable_bytes(std::span(record))).ok());
      seen.push_back(std::move(record));
    }
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

TEST(MakeModel, WeightsHaveMeanZeroAndKeepTheSizeOfTheirInput) {
  RandomModel model = tiny();
  model.experts = {Format::kQ4, Format::kQ3, Format::kQ2};
  const auto source = make(model);
  const auto best = values_of(*source, 0);
  for (std::size_t tier = 0; tier < 3; ++tier) {
    const auto values = values_of(*source, tier);
    const Spread spread = spread_of(values);
    EXPECT_NEAR(spread.mean, 0, 0.004) << tier;
    EXPECT_NEAR(spread.deviation, 1 / 8.0, 0.006) << tier;
    // One model in all precisions: half a step of the codes of 3 bits, one and a half of 2.
    EXPECT_LE(test::relative_error(values, best), 0.15 * static_cast<double>(tier)) << tier;
  }
  for (const store::DenseBits bits :
       {store::DenseBits::kQ4, store::DenseBits::kQ8, store::DenseBits::kSource}) {
    model.dense = bits;
    const auto dense = make(model)->read_dense("layers.0.linear_attn.out_proj");
    ASSERT_TRUE(dense.ok());
    EXPECT_EQ(dense->format, bits == store::DenseBits::kQ4   ? Format::kQ4
                             : bits == store::DenseBits::kQ8 ? Format::kQ8
                                                             : Format::kBf16);
  }
}

TEST(MakeModel, RowsReadAloneAreThoseOfTheWhole) {
  for (const store::DenseBits bits :
       {store::DenseBits::kQ4, store::DenseBits::kQ8, store::DenseBits::kSource}) {
    RandomModel model = tiny();
    model.dense = bits;
    const auto source = make(model);
    const auto whole = source->read_dense("lm_head").value();
    const auto some = source->read_dense_rows("lm_head", 101, 7).value();
    const std::size_t row = 64 * static_cast<std::size_t>(spec::bits_of(whole.format)) / 8;
    EXPECT_EQ(std::memcmp(some.buffer.data(), whole.buffer.data() + 101 * row, 7 * row), 0);
    if (!spec::is_quantised(whole.format)) continue;
    EXPECT_EQ(std::memcmp(some.buffer.data() + some.scales_offset,
                          whole.buffer.data() + whole.scales_offset + 101 * 2, 7 * 2),
              0);
    EXPECT_EQ(std::memcmp(some.buffer.data() + some.biases_offset,
                          whole.buffer.data() + whole.biases_offset + 101 * 2, 7 * 2),
              0);
  }
}

// Twelve times the layers of tiny: activations neither die nor grow.
TEST(MakeModel, LogitsAreFiniteAndTokensDiffer) {
  const test::TempFolder folder;
  RandomModel model = tiny();
  model.config = spec::override_geometry(model.config, {.layers = 48}).value();
  write_store(model, folder / "store");
  const auto loaded = test::load_model(folder / "store");
  ASSERT_NE(loaded.model, nullptr);
  const std::vector<std::int32_t> tokens{5, 6, 7, 300, 5, 6};
  const auto run = decode::run_logits(*loaded.model, tokens, {});
  ASSERT_TRUE(run.ok()) << run.error().message;
  const std::vector<float>& logits = run->logits;
  for (const float v : logits) ASSERT_TRUE(std::isfinite(v));
  const std::size_t vocab = 512;
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    const Spread spread = spread_of(std::span(logits).subspan(row * vocab, vocab));
    EXPECT_GT(spread.deviation, 0.3) << row;
    EXPECT_LT(spread.deviation, 3) << row;
  }
  EXPECT_GT(test::relative_error(std::span(logits).first(vocab), std::span(logits).subspan(vocab, vocab)),
            0.3);
}

TEST(MakeModel, GeometriesCanBeChanged) {
  const test::TempFolder folder;
  RandomModel model = tiny();
  model.config =
      spec::override_geometry(model.config, {.layers = 2, .experts = 9, .ngram_base = 101}).value();
  write_store(model, folder / "store");
  const auto store = store::PackedStore::open(folder / "store");
  ASSERT_TRUE(store.ok()) << store.error().message;
  EXPECT_EQ(store.value()->config().layer_count(), 2);
  EXPECT_EQ(store.value()->manifest().records(), 3 * 9);
  EXPECT_EQ(store.value()->manifest().tiers.front().method, "random");
  EXPECT_EQ(store.value()->ngram_layout(1)->rows % 128, 0);
  EXPECT_LT(store.value()->ngram_layout(1)->rows, 128 * 5);
}

TEST(MakeModel, ACheckpointPacksToTheStoreOfTheSameSeed) {
  for (const store::DenseBits bits :
       {store::DenseBits::kQ4, store::DenseBits::kQ8, store::DenseBits::kSource}) {
    const test::TempFolder folder;
    RandomModel model = tiny(3);
    model.dense = bits;
    write_store(model, folder / "direct");
    CheckpointOptions options;
    options.jobs = 3;
    options.shard_bytes = std::uint64_t{1} << 20;
    const auto written = write_checkpoint(*make(model), folder / "checkpoint", options);
    ASSERT_TRUE(written.ok()) << written.error().message;
    EXPECT_GT(written->files, 1U);
    const auto checkpoint = store::open_checkpoint(folder / "checkpoint");
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    EXPECT_EQ(checkpoint.value()->form(), "mlx-4bit");
    PackOptions packing;
    packing.dense = store::DenseBits::kSource;
    const auto packed = pack(*checkpoint.value(), folder / "packed", packing);
    ASSERT_TRUE(packed.ok()) << packed.error().message;
    for (const char* name : kData) {
      EXPECT_TRUE(content(folder / "direct" / name) == content(folder / "packed" / name)) << name;
    }
  }
}

TEST(MakeModel, ACheckpointOfOneFileNeedsNoIndex) {
  const test::TempFolder folder;
  const auto written = write_checkpoint(*make(tiny()), folder / "c", {});
  ASSERT_TRUE(written.ok()) << written.error().message;
  std::vector<std::string> names;
  for (const auto& [name, text] : files_of(folder / "c")) names.push_back(name);
  EXPECT_THAT(names, testing::ElementsAre("config.json", "model.safetensors"));
  EXPECT_TRUE(store::open_checkpoint(folder / "c").ok());
  const auto again = write_checkpoint(*make(tiny()), folder / "c", {});
  ASSERT_FALSE(again.ok());
  EXPECT_THAT(again.error().message, testing::HasSubstr("a new or empty folder needed"));
  EXPECT_TRUE(write_checkpoint(*make(tiny(2)), folder / "c", {.force = true}).ok());
  folder.write("c/notes.txt", "mine");
  const auto kept = write_checkpoint(*make(tiny()), folder / "c", {.force = true});
  ASSERT_FALSE(kept.ok());
  EXPECT_THAT(kept.error().message, testing::HasSubstr("holds notes.txt"));
  EXPECT_TRUE(fs::exists(folder / "c" / "model.safetensors"));
}

TEST(MakeModel, PackingAStoreAgainKeepsAllItsPrecisions) {
  const test::TempFolder folder;
  RandomModel model = tiny();
  model.experts = {Format::kQ4, Format::kQ2};
  write_store(model, folder / "a");
  const auto source = store::open_store(folder / "a");
  ASSERT_TRUE(source.ok());
  const auto packed = pack(*source.value(), folder / "b", keep_all());
  ASSERT_TRUE(packed.ok()) << packed.error().message;
  PackOptions more = keep_all();
  more.keep_experts = false;
  more.experts = {Format::kQ3, Format::kQ2};
  more.method = TierMethod::kTruncate;
  ASSERT_TRUE(pack(*source.value(), folder / "c", more).ok());
  for (const char* name : {"dense.bin", "experts.q4.bin", "experts.q2.bin", "ngram.bin"}) {
    EXPECT_TRUE(content(folder / "a" / name) == content(folder / "b" / name)) << name;
  }
  EXPECT_TRUE(content(folder / "a" / "experts.q2.bin") == content(folder / "c" / "experts.q2.bin"));
  // What truncating gives is what the random model has.
  model.experts = {Format::kQ3};
  write_store(model, folder / "three");
  EXPECT_TRUE(content(folder / "three" / "experts.q3.bin") == content(folder / "c" / "experts.q3.bin"));
}

TEST(MakeModel, ASparseStoreIsWholeAndTakesNoSpaceForItsExperts) {
  const test::TempFolder folder;
  RandomModel model = tiny();
  model.zero_experts = true;
  PackOptions options = keep_all();
  options.sparse = true;
  write_store(model, folder / "store", options);
  const auto verified = verify_store(folder / "store", false, 1);
  ASSERT_TRUE(verified.ok()) << verified.error().message;
  EXPECT_EQ(verified->damaged, 0U);
  struct stat st {};
  ASSERT_EQ(::stat((folder / "store" / "experts.q4.bin").c_str(), &st), 0);
  EXPECT_EQ(st.st_size, 5 * 16 * 16384);
  EXPECT_LT(st.st_blocks * 512, 16384);
}

TEST(MakeModel, NonsenseIsRefused) {
  RandomModel model = tiny();
  model.experts = {Format::kQ8};
  EXPECT_THAT(RandomSource::create(model).error().message, testing::HasSubstr("4, 3 and 2 bits needed"));
  model.experts = {};
  EXPECT_FALSE(RandomSource::create(model).ok());
  model = tiny();
  model.config["text_config"]["moe_intermediate_size"] = 48;
  EXPECT_THAT(RandomSource::create(model).error().message, testing::HasSubstr("multiples of 32"));
  const auto source = make(tiny());
  std::vector<std::byte> record(static_cast<std::size_t>(source->record_layout().bytes()));
  EXPECT_FALSE(source->read_record(1, 0, 0, record).ok());
  EXPECT_FALSE(source->read_record(0, 5, 0, record).ok());
  EXPECT_FALSE(source->read_dense("layers.9.mlp.gate").ok());
  EXPECT_FALSE(source->read_dense_rows("lm_head", 512, 1).ok());
  const test::TempFolder folder;
  fs::create_directory(folder / "d");
  folder.write("d/notes.txt", "mine");
  EXPECT_FALSE(pack(*source, folder / "d", keep_all()).ok());
  RandomModel three = tiny();
  three.experts = {Format::kQ3};
  EXPECT_THAT(write_checkpoint(*make(three), folder / "e", {}).error().message,
              testing::HasSubstr("4 or 8 bits needed"));
  EXPECT_FALSE(fs::exists(folder / "e"));
}

}  // namespace
}  // namespace sluice::pack
