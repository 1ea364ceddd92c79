// What a plan says before packing is what packing and loading then find, whatever the source and the options.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/plan.h"
#include "engine/plan_model.h"
#include "engine/tier.h"
#include "pack/cache.h"
#include "pack/pack.h"
#include "sluice/engine.h"
#include "store/config_form.h"
#include "support/fixtures.h"
#include "support/random_model.h"
#include "support/temp_folder.h"

namespace sluice::engine {
namespace {

namespace fs = std::filesystem;
using spec::Format;

constexpr FoundMemory kMemory{.usable = std::uint64_t{200} << 20, .given = true};

pack::PackOptions options_of(std::vector<Format> experts, bool keep_experts, store::DenseBits dense,
                             bool keep_ngram) {
  pack::PackOptions options;
  options.experts = std::move(experts);
  options.keep_experts = keep_experts;
  options.dense = dense;
  options.keep_ngram = keep_ngram;
  options.jobs = 1;
  return options;
}

std::vector<pack::PackOptions> all_options() {
  std::vector<pack::PackOptions> all;
  for (const store::DenseBits dense :
       {store::DenseBits::kQ8, store::DenseBits::kQ4, store::DenseBits::kSource}) {
    all.push_back(options_of({}, false, dense, dense == store::DenseBits::kQ4));
  }
  using Formats = std::vector<Format>;
  for (const Formats& experts :
       {Formats{Format::kQ8}, Formats{Format::kQ4}, Formats{Format::kQ3}, Formats{Format::kQ2},
        Formats{Format::kQ2, Format::kQ4}, Formats{Format::kQ3, Format::kQ2, Format::kQ8}}) {
    all.push_back(options_of(experts, false, store::DenseBits::kQ8, false));
  }
  all.push_back(options_of({}, true, store::DenseBits::kSource, true));
  return all;
}

std::uint64_t bytes_on_disk(const fs::path& store) {
  std::uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(store)) {
    if (entry.path().filename() != "manifest.json") bytes += entry.file_size();
  }
  return bytes;
}

void expect_same(const MemoryPlan& plan, const MemoryPlan& found) {
  ASSERT_EQ(plan.parts.size(), found.parts.size());
  for (std::size_t i = 0; i < plan.parts.size(); ++i) {
    EXPECT_EQ(plan.parts[i].bytes, found.parts[i].bytes) << plan.parts[i].key;
  }
  EXPECT_EQ(plan.experts.layout.format, found.experts.layout.format);
  EXPECT_EQ(plan.experts.layout.geometry.group, found.experts.layout.geometry.group);
  EXPECT_EQ(plan.experts.records, found.experts.records);
  EXPECT_EQ(plan.experts.resident_bytes, found.experts.resident_bytes);
  EXPECT_EQ(plan.experts.file_bytes, found.experts.file_bytes);
  EXPECT_EQ(plan.experts.slots, found.experts.slots);
  EXPECT_EQ(plan.fixed(), found.fixed());
  ASSERT_EQ(plan.ngram.has_value(), found.ngram.has_value());
  if (plan.ngram) {
    EXPECT_EQ(plan.ngram->row_bytes, found.ngram->row_bytes);
  }
  EXPECT_EQ(plan.store_bytes, found.store_bytes);
}

/// A checkpoint in `folder` of one of the forms below.
void write_checkpoint(const fs::path& folder, const std::string& form) {
  test::RandomModel model;
  model.config = test::tiny_config();
  if (form != "bf16") {
    model.form = test::ModelForm::kMlx;
    model.bits = form == "mlx8" ? 8 : 4;
    model.group = form == "mlx4 in groups of 32" ? 32 : 64;
  }
  model.with_mtp = form != "mlx8";
  write_random_model(folder, model);
}

class PlanAgreement : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() != "fp8") {
      source_ = folder_ / "source";
      fs::create_directories(source_);
      return write_checkpoint(source_, GetParam());
    }
    source_ = fs::path(SLUICE_SHARED) / "fixtures" / "model" / "tinyfp8";
    if (!fs::exists(source_)) GTEST_SKIP() << "no " << source_;
  }
  test::TempFolder folder_;
  fs::path source_;
};

TEST_P(PlanAgreement, WithWhatPackWritesAndRunLoads) {
  const auto source = std::move(store::open_source(source_)).value();
  int number = 0, made = 0;
  for (const pack::PackOptions& options : all_options()) {
    SCOPED_TRACE(number);
    const fs::path store = folder_ / std::to_string(number++);
    const auto plan = make_plan(source->config(), source.get(), {.packing = options}, kMemory);
    const auto report = pack::pack(*source, store, options);
    ASSERT_EQ(plan.ok(), report.ok());
    if (!plan.ok()) {
      EXPECT_EQ(plan.error().message, report.error().message);
      continue;
    }
    ++made;
    EXPECT_EQ(plan->store_bytes, report->bytes);
    EXPECT_EQ(plan->store_bytes, bytes_on_disk(store));
    const auto packed = open_planned(store.string());
    ASSERT_TRUE(packed.ok()) << packed.error().message;
    const auto found = make_plan(packed->config, packed->source.get(), {}, kMemory);
    ASSERT_TRUE(found.ok()) << found.error().message;
    expect_same(*plan, *found);
    EXPECT_EQ(found->file_bytes, 0U);  // a store is no checkpoint
  }
  EXPECT_GE(made, 6);
}

TEST_P(PlanAgreement, WithTheStoreOfFirstUse) {
  const auto source = std::move(store::open_source(source_)).value();
  const auto plan = make_plan(source->config(), source.get(), {.packing = pack::PackOptions{}}, kMemory);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  const auto opened = pack::open_model(source_, folder_ / "stores", {});
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const auto found = make_plan((*opened)->config(), opened->get(), {}, kMemory);
  ASSERT_TRUE(found.ok()) << found.error().message;
  expect_same(*plan, *found);
}

INSTANTIATE_TEST_SUITE_P(Sources, PlanAgreement,
                         testing::Values("bf16", "fp8", "mlx4", "mlx4 in groups of 32", "mlx8"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

TEST(PlanOfAStore, HasThePrecisionsOfTheStore) {
  const test::TempFolder folder;
  fs::create_directories(folder / "source");
  write_checkpoint(folder / "source", "bf16");
  const auto source = std::move(store::open_source(folder / "source")).value();
  ASSERT_TRUE(pack::pack(*source, folder / "store",
                         options_of({Format::kQ4, Format::kQ2}, false, store::DenseBits::kQ8, false))
                  .ok());
  const auto store = std::move(store::open_source(folder / "store")).value();
  const auto two = make_plan(store->config(), store.get(), {.experts = 2}, kMemory);
  ASSERT_TRUE(two.ok()) << two.error().message;
  EXPECT_EQ(two->experts.layout.format, Format::kQ2);
  EXPECT_EQ(two->tier, 1U);
  // One that it lacks is the error that running it gives.
  const auto three = make_plan(store->config(), store.get(), {.experts = 3}, kMemory);
  ASSERT_FALSE(three.ok());
  EXPECT_EQ(three.error().message, tier_of(*store, 3).error().message);
  EngineOptions engine;
  engine.experts = 3;
  EXPECT_EQ(Engine::open(folder / "store", engine).error().message, three.error().message);
}

TEST(FirstUse, WhatCannotBeServedIsRefusedBeforeAnythingIsPacked) {
  const test::TempFolder folder;
  fs::create_directories(folder / "source");
  write_checkpoint(folder / "source", "bf16");
  const auto refused = [&](EngineOptions options) {
    options.store_dir = folder / "stores";
    const auto opened = Engine::open(folder / "source", options);
    EXPECT_FALSE(opened.ok());
    EXPECT_FALSE(fs::exists(folder / "stores"));
    return opened.ok() ? "" : opened.error().message;
  };
  EngineOptions bits, context, memory, pool;
  bits.experts = 2;
  EXPECT_NE(refused(bits).find("experts of 2 bits asked for, it has 4"), std::string::npos);
  context.context = 1 << 30;
  EXPECT_NE(refused(context).find("the model takes 1 to"), std::string::npos);
  memory.memory = 1 << 20;
  EXPECT_NE(refused(memory).find("of memory needed, 1.00 MiB given"), std::string::npos);
  pool.pool = 1000;
  EXPECT_NE(refused(pool).find("expert pool of 1000 B"), std::string::npos);
}

TEST(PlanOfAConfig, IsThatOfTheFilesItAnnounces) {
  for (const char* form : {"bf16", "mlx4", "mlx4 in groups of 32", "mlx8"}) {
    SCOPED_TRACE(form);
    const test::TempFolder folder;
    write_checkpoint(folder.path(), form);
    const auto source = std::move(store::open_source(folder.path())).value();
    const store::ConfigForm announced(source->config());
    EXPECT_EQ(announced.record_layout().format, source->record_layout().format);
    EXPECT_EQ(announced.record_layout().geometry.group, source->record_layout().geometry.group);
    for (const pack::PackOptions& options : all_options()) {
      if (!source->has_mtp()) continue;  // a config does not tell that files lack it
      const auto files = make_plan(source->config(), source.get(), {.packing = options}, kMemory);
      const auto config = make_plan(source->config(), &announced, {.packing = options}, kMemory);
      ASSERT_EQ(files.ok(), config.ok());
      if (!files.ok()) continue;
      EXPECT_EQ(files->experts.file_bytes, config->experts.file_bytes);
      EXPECT_EQ(files->experts.resident_bytes, config->experts.resident_bytes);
      EXPECT_EQ(files->ngram->table_bytes, config->ngram->table_bytes);
      EXPECT_NEAR(static_cast<double>(files->fixed()), static_cast<double>(config->fixed()),
                  0.01 * static_cast<double>(files->fixed()));
    }
  }
}

}  // namespace
}  // namespace sluice::engine
