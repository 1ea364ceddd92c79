// Logits from packed stores against the reference library's.
#include <gtest/gtest.h>

#include "backend/create.h"
#include "decode/logits_run.h"
#include "pack_folder.h"
#include "support/fixtures.h"
#include "support/loaded_model.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

using test::fs::path;

const path kModels = path(SLUICE_TEST_DATA) / "model";
const path kShared = path(SLUICE_SHARED) / "fixtures" / "model";

pack::PackOptions kept() {
  pack::PackOptions options;
  options.keep_experts = options.keep_ngram = true;
  options.dense = store::DenseBits::kSource;
  return options;
}

/// The largest relative error of any prompt's logits, or -1 after a failure.
double largest_error(const path& store, const path& expected_file, std::size_t tier = 0) {
  const auto loaded = test::load_model(store, "cpu_exact", {.tier = tier});
  if (loaded.model == nullptr) return -1;
  const auto expected = test::Fixture::load(expected_file);
  double most = -1;
  for (const char* name : {"one", "seven", "mid", "long_eos", "rep"}) {
    const std::string prompt = name;
    if (!expected.has(prompt + ".ids")) continue;
    const auto run = decode::run_logits(*loaded.model, expected.ids(prompt + ".ids"), {});
    EXPECT_TRUE(run.ok()) << (run.ok() ? "" : run.error().message);
    if (!run.ok()) return -1;
    most = std::max(most, test::relative_error(run->logits, expected.floats(prompt + ".logits")));
  }
  return most;
}

TEST(PackedLogits, ABf16ModelKeptAsItIs) {
  test::TempFolder folder;
  ASSERT_TRUE(test::pack_folder(kModels / "tiny", folder / "store", kept()).ok());
  const double error = largest_error(folder / "store", kModels / "tiny" / "expected.safetensors");
  EXPECT_GE(error, 0);
  EXPECT_LE(error, 1e-4);
}

TEST(PackedLogits, AnFp8ModelKeptAsItIs) {
  if (!std::filesystem::exists(kShared / "tinyfp8"))
    GTEST_SKIP() << "the shared fixtures are not beside the project";
  test::TempFolder folder;
  ASSERT_TRUE(test::pack_folder(kShared / "tinyfp8", folder / "store", kept()).ok());
  const double error = largest_error(folder / "store", kShared / "tinyfp8" / "expected.safetensors");
  EXPECT_GE(error, 0);
  EXPECT_LE(error, 1e-4);
}

TEST(PackedLogits, AFourBitModelInAnyCase) {
  test::TempFolder folder;
  ASSERT_TRUE(test::pack_folder(kModels / "tiny4", folder / "store").ok());
  const double error = largest_error(folder / "store", kModels / "tiny4" / "expected.safetensors");
  EXPECT_GE(error, 0);
  EXPECT_LE(error, 1e-4);
}

TEST(PackedLogits, TheSameBitsAsFromTheCheckpoint) {
  test::TempFolder folder;
  ASSERT_TRUE(test::pack_folder(kModels / "tiny4", folder / "store").ok());
  const auto expected = test::Fixture::load(kModels / "tiny4" / "expected.safetensors");
  const auto packed = test::load_model(folder / "store");
  const auto checkpoint = test::load_model(kModels / "tiny4");
  ASSERT_TRUE(packed.model && checkpoint.model);
  const auto ids = expected.ids("mid.ids");
  EXPECT_EQ(decode::run_logits(*packed.model, ids, {.mtp = true})->mtp_logits,
            decode::run_logits(*checkpoint.model, ids, {.mtp = true})->mtp_logits);
  EXPECT_EQ(decode::run_logits(*packed.model, ids, {})->logits,
            decode::run_logits(*checkpoint.model, ids, {})->logits);
}

// The distances are recorded as properties and stated in docs/quality.md; a random model amplifies every
// error, so they are bounds on gross faults only.
TEST(PackedLogits, QuantisedModelsKeepTheirDistance) {
  test::TempFolder folder;
  ASSERT_TRUE(test::pack_folder(kModels / "tiny", folder / "store").ok());
  double before = 0;
  for (std::size_t tier = 0; tier < 3; ++tier) {
    const double error = largest_error(folder / "store", kModels / "tiny" / "expected.safetensors", tier);
    RecordProperty("tier" + std::to_string(tier), std::to_string(error));
    EXPECT_GT(error, before) << tier;
    EXPECT_LT(error, 1.0) << tier;
    before = error;
  }
}

}  // namespace
}  // namespace sluice
