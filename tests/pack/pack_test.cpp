// What packing keeps, converts and writes.
#include "pack/pack.h"

#include <gtest/gtest.h>

#include "pack/layout.h"
#include "pack/verify.h"
#include "pack_folder.h"
#include "quant/record.h"
#include "store/dense_table.h"
#include "store/packed_store.h"
#include "support/temp_folder.h"
#include "support/weights.h"

namespace sluice {
namespace {

using test::contents;
using test::open_folder;
using test::pack_folder;

class Pack : public testing::Test {
 protected:
  test::TempFolder folder_;
  const test::fs::path source_ = folder_ / "source";
  const test::fs::path store_ = folder_ / "store";
};

std::vector<std::byte> record_of(const store::WeightSource& source, std::size_t tier, std::int64_t layer,
                                 std::int64_t expert) {
  std::vector<std::byte> record(static_cast<std::size_t>(source.record_layouts()[tier].bytes()));
  const auto read = source.read_record(tier, layer, expert, record);
  EXPECT_TRUE(read.ok()) << (read.ok() ? "" : read.error().message);
  return record;
}

void expect_same_dense(const store::WeightSource& a, const store::WeightSource& b) {
  for (const auto& info : store::dense_tensors(a.config(), a.has_mtp())) {
    const auto left = a.read_dense(info.name);
    const auto right = b.read_dense(info.name);
    ASSERT_TRUE(left.ok() && right.ok()) << info.name;
    EXPECT_EQ(left->format, right->format) << info.name;
    EXPECT_EQ(left->shape, right->shape) << info.name;
    EXPECT_EQ(test::dense_values(*left), test::dense_values(*right)) << info.name;
  }
}

void expect_same_rows(const store::WeightSource& a, const store::WeightSource& b) {
  for (const std::int64_t layer : a.config().ple->layers) {
    const auto hash = a.ngram_hash(layer);
    const auto other = b.ngram_hash(layer);
    ASSERT_TRUE(hash.ok() && other.ok());
    EXPECT_EQ(hash->multipliers, other->multipliers);
    EXPECT_EQ(hash->sizes, other->sizes);
    EXPECT_EQ(hash->offsets, other->offsets);
    ASSERT_EQ(hash->rows, other->rows);
    std::vector<std::int64_t> rows(static_cast<std::size_t>(hash->rows));
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
    std::vector<float> left(rows.size() * static_cast<std::size_t>(a.config().ple->head_dim()));
    std::vector<float> right(left.size());
    ASSERT_TRUE(a.read_ngram_rows(layer, rows, left).ok());
    ASSERT_TRUE(b.read_ngram_rows(layer, rows, right).ok());
    EXPECT_EQ(left, right);
  }
}

TEST_F(Pack, AQuantisedSourceKeepsEveryCode) {
  test::write_source(source_, test::ModelForm::kMlx);
  ASSERT_TRUE(pack_folder(source_, store_).ok());
  const auto source = open_folder(source_);
  const auto packed = open_folder(store_);
  ASSERT_NE(packed, nullptr);
  expect_same_dense(*source, *packed);
  expect_same_rows(*source, *packed);
  for (std::int64_t layer = 0; layer < 5; ++layer) {
    for (std::int64_t expert = 0; expert < source->config().experts; ++expert) {
      EXPECT_EQ(record_of(*source, 0, layer, expert), record_of(*packed, 0, layer, expert));
    }
  }
  EXPECT_EQ(packed->form(), "packed from mlx-4bit");
  EXPECT_EQ(packed->parameters().total(), source->parameters().total());
}

TEST_F(Pack, GroupsOf32StayGroupsOf32) {
  test::fs::create_directories(source_);
  test::RandomModel model;
  model.config = test::tiny_config();
  model.form = test::ModelForm::kMlx;
  model.group = 32;
  test::write_random_model(source_, model);
  ASSERT_TRUE(pack_folder(source_, store_).ok());
  const auto source = open_folder(source_);
  const auto packed = open_folder(store_);
  ASSERT_EQ(packed->record_layout().geometry.group, 32);
  expect_same_dense(*source, *packed);
  EXPECT_EQ(record_of(*source, 0, 3, 7), record_of(*packed, 0, 3, 7));
}

TEST_F(Pack, WhatIsKeptHasTheSourcesValues) {
  test::write_source(source_);
  pack::PackOptions options;
  options.keep_experts = options.keep_ngram = true;
  options.dense = store::DenseBits::kSource;
  ASSERT_TRUE(pack_folder(source_, store_, options).ok());
  const auto source = open_folder(source_);
  const auto packed = open_folder(store_);
  expect_same_dense(*source, *packed);
  expect_same_rows(*source, *packed);
  EXPECT_EQ(record_of(*source, 0, 4, 15), record_of(*packed, 0, 4, 15));
}

TEST_F(Pack, RealValuesAreQuantisedAsTheOptionsSay) {
  test::write_source(source_);
  ASSERT_TRUE(pack_folder(source_, store_).ok());
  const auto source = open_folder(source_);
  const auto opened = store::PackedStore::open(store_);
  ASSERT_TRUE(opened.ok());
  const auto& manifest = (*opened)->manifest();
  for (const auto& tensor : manifest.dense) {
    if (tensor.name.ends_with("q_proj")) {
      EXPECT_EQ(tensor.format, spec::Format::kQ8) << tensor.name;
    }
    if (tensor.name.ends_with(".mlp.gate")) {
      EXPECT_EQ(tensor.format, spec::Format::kBf16) << tensor.name;
    }
  }
  ASSERT_EQ(manifest.tiers.size(), 3U);
  EXPECT_EQ(manifest.tiers[0].method, "quantised");
  EXPECT_EQ(manifest.tiers[2].method, "refit");
  // Every precision is nearer to the source than the next lower one.
  const auto error = [&](std::size_t tier) {
    double sum = 0;
    const auto& layout = (*opened)->record_layouts()[tier];
    for (int m = 0; m < 3; ++m) {
      const auto want = test::record_values(source->record_layout(), record_of(*source, 0, 2, 5), m);
      const auto have = test::record_values(layout, record_of(**opened, tier, 2, 5), m);
      for (std::size_t i = 0; i < want.size(); ++i)
        sum += double{want[i] - have[i]} * double{want[i] - have[i]};
    }
    return sum;
  };
  EXPECT_LT(error(0), error(1));
  EXPECT_LT(error(1), error(2));
}

TEST_F(Pack, TruncatedTiersDropBitsOfTheStoredCodes) {
  test::write_source(source_);
  pack::PackOptions options = test::all_tiers();
  options.method = pack::TierMethod::kTruncate;
  ASSERT_TRUE(pack_folder(source_, store_, options).ok());
  const auto packed = open_folder(store_);
  const auto& layouts = packed->record_layouts();
  for (std::size_t tier = 1; tier < 3; ++tier) {
    std::vector<std::byte> wanted(static_cast<std::size_t>(layouts[tier].bytes()));
    ASSERT_TRUE(quant::truncate_record(layouts[0], record_of(*packed, 0, 1, 9), layouts[tier], wanted).ok());
    EXPECT_EQ(record_of(*packed, tier, 1, 9), wanted);
  }
}

TEST_F(Pack, ATruncatedTierAloneEqualsTheOneBesideItsCodes) {
  test::write_source(source_);
  pack::PackOptions options = test::all_tiers();
  options.method = pack::TierMethod::kTruncate;
  ASSERT_TRUE(pack_folder(source_, store_, options).ok());
  options.experts = {spec::Format::kQ2};
  ASSERT_TRUE(pack_folder(source_, folder_ / "two", options).ok());
  EXPECT_EQ(record_of(*open_folder(store_), 2, 3, 3), record_of(*open_folder(folder_ / "two"), 0, 3, 3));
}

TEST_F(Pack, TheNumberOfThreadsChangesNoByte) {
  test::write_source(source_);
  ASSERT_TRUE(pack_folder(source_, store_).ok());
  pack::PackOptions options = test::all_tiers();
  options.jobs = 3;
  ASSERT_TRUE(pack_folder(source_, folder_ / "other", options).ok());
  EXPECT_EQ(contents(store_), contents(folder_ / "other"));
}

TEST_F(Pack, TheSizeIsKnownBeforehand) {
  test::write_source(source_);
  const auto source = open_folder(source_);
  const auto plan = pack::plan_store(*source, test::all_tiers());
  ASSERT_TRUE(plan.ok());
  ASSERT_TRUE(pack_folder(source_, store_).ok());
  std::uint64_t bytes = 0;
  for (const auto& [name, content] : contents(store_)) {
    if (name != "manifest.json") bytes += content.size();
  }
  EXPECT_EQ(store::store_bytes(*plan), bytes);
}

TEST_F(Pack, ProgressEndsAtTheWhole) {
  test::write_source(source_);
  pack::PackOptions options = test::all_tiers();
  std::uint64_t last = 0;
  std::uint64_t total = 0;
  options.on_progress = [&](std::uint64_t done, std::uint64_t all) {
    EXPECT_GE(done, last);
    last = done;
    total = all;
  };
  std::vector<std::size_t> finished;
  options.on_file_done = [&](std::size_t file) { finished.push_back(file); };
  ASSERT_TRUE(pack_folder(source_, store_, options).ok());
  EXPECT_EQ(last, total);
  // Each of the source's files is given back once, in order, as tasks go through them file by file.
  EXPECT_EQ(finished, (std::vector<std::size_t>{0, 1, 2}));
}

TEST_F(Pack, PackingAgainFindsTheStoreThere) {
  test::write_source(source_);
  ASSERT_TRUE(pack_folder(source_, store_).ok());
  const auto before = contents(store_);
  const auto again = pack_folder(source_, store_);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->was_there);
  EXPECT_EQ(contents(store_), before);
}

TEST_F(Pack, ForceReplacesAStoreAndItsOldFiles) {
  test::write_source(source_);
  ASSERT_TRUE(pack_folder(source_, store_).ok());
  pack::PackOptions options;
  options.force = true;
  ASSERT_TRUE(pack_folder(source_, store_, options).ok());
  EXPECT_FALSE(contents(store_).contains("experts.q2.bin"));
  ASSERT_TRUE(pack_folder(source_, folder_ / "fresh", options).ok());
  EXPECT_EQ(contents(store_), contents(folder_ / "fresh"));
}

TEST_F(Pack, AReplacedStoreKeepsNothingOfTheOldModel) {
  test::write_source(source_);
  std::ofstream(source_ / "tokenizer.json") << "{}";
  ASSERT_TRUE(pack_folder(source_, store_).ok());
  ASSERT_TRUE(contents(store_).contains("tokenizer.json"));
  test::fs::remove(source_ / "tokenizer.json");
  pack::PackOptions force = test::all_tiers();
  force.force = true;
  ASSERT_TRUE(pack_folder(source_, store_, force).ok());
  EXPECT_FALSE(contents(store_).contains("tokenizer.json"));
}

TEST_F(Pack, AStoreCanBePackedAgain) {
  test::write_source(source_, test::ModelForm::kMlx);
  ASSERT_TRUE(pack_folder(source_, store_, {}).ok());
  ASSERT_TRUE(pack_folder(store_, folder_ / "low").ok());
  const auto first = open_folder(store_);
  const auto second = open_folder(folder_ / "low");
  expect_same_dense(*first, *second);
  expect_same_rows(*first, *second);
  EXPECT_EQ(record_of(*first, 0, 0, 0), record_of(*second, 0, 0, 0));
  EXPECT_EQ(second->record_layouts().size(), 3U);
}

TEST_F(Pack, ModelsWithoutOptionalPartsPackToo) {
  test::fs::create_directories(source_);
  test::RandomModel model;
  model.config = test::tiny_config();
  auto& text = model.config["text_config"];
  text["ple_layer_ids"] = Json::array();
  model.with_mtp = false;
  test::write_random_model(source_, model);
  ASSERT_TRUE(pack_folder(source_, store_).ok());
  const auto packed = open_folder(store_);
  EXPECT_FALSE(packed->has_mtp());
  EXPECT_EQ(packed->missing(), open_folder(source_)->missing());
  EXPECT_FALSE(contents(store_).contains("ngram.bin"));
  EXPECT_EQ(pack::verify_store(store_, false, 2)->damaged, 0U);
}

TEST_F(Pack, VerifyReadsEveryByte) {
  test::write_source(source_);
  ASSERT_TRUE(pack_folder(source_, store_).ok());
  const auto report = pack::verify_store(store_, false, 2);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->damaged, 0U);
  std::uint64_t payload = 0;
  for (const auto& [name, content] : contents(store_)) {
    if (name.ends_with(".bin")) payload += content.size();
  }
  EXPECT_EQ(report->bytes, payload);
}

}  // namespace
}  // namespace sluice
