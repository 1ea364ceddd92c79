// Models whose experts flow through a pool: the same bits as with all of them in memory (faults 46, 50).
#include <gtest/gtest.h>

#include "decode/logits_run.h"
#include "pack/pack.h"
#include "store/store_format.h"
#include "support/fixtures.h"
#include "support/loaded_model.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class PooledModel : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path model = fs::path(SLUICE_TEST_DATA) / "model" / "tiny4";
    const auto source = store::open_checkpoint(model);
    ASSERT_TRUE(source.ok());
    ASSERT_TRUE(pack::pack(**source, store_, {}).ok());
    slot_ = static_cast<std::uint64_t>(store::slot_bytes((*source)->record_layout()));
    records_ = static_cast<std::uint64_t>((*source)->config().record_layers() * (*source)->config().experts);
    ids_ = test::Fixture::load(model / "expected.safetensors").ids("mid.ids");
    const auto loaded = test::load_model(store_);
    ASSERT_NE(loaded.model, nullptr);
    wanted_ = run(*loaded.model, {.wide = true, .mtp = true});
  }
  decode::LogitsRun run(model::Model& model, const decode::LogitsRunOptions& options) {
    auto result = decode::run_logits(model, ids_, options);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    return result.ok() ? std::move(result).value() : decode::LogitsRun{};
  }
  test::TempFolder folder_;
  const fs::path store_ = folder_ / "store";
  std::uint64_t slot_ = 0, records_ = 0;
  std::vector<std::int32_t> ids_;
  decode::LogitsRun wanted_;
};

TEST_F(PooledModel, EveryPoolSizeGivesTheSameBits) {
  for (const std::uint64_t slots :
       {std::uint64_t{2}, std::uint64_t{3}, std::uint64_t{7}, std::uint64_t{20}, records_ / 2, records_}) {
    for (const int threads : {1, 2}) {
      const auto loaded = test::load_model(store_, "cpu", {.pool_bytes = slots * slot_}, threads);
      ASSERT_NE(loaded.model, nullptr);
      for (const std::int64_t rows : {0, 1, 8}) {
        const auto found = run(*loaded.model, {.rows = rows, .wide = true, .mtp = true});
        EXPECT_EQ(found.logits, wanted_.logits) << slots << " slots, rows " << rows;
        EXPECT_EQ(found.wide, wanted_.wide) << slots << " slots, rows " << rows;
        EXPECT_EQ(found.mtp_logits, wanted_.mtp_logits) << slots << " slots, rows " << rows;
      }
      EXPECT_EQ(loaded.model->expert_bytes(), slots * slot_);
    }
  }
}

TEST_F(PooledModel, APoolThatHoldsAllReadsEachRecordOnce) {
  const auto loaded = test::load_model(store_, "cpu", {.pool_bytes = records_ * slot_});
  ASSERT_NE(loaded.model, nullptr);
  (void)run(*loaded.model, {});
  const auto first = loaded.model->expert_counts();
  EXPECT_LE(first.misses, records_);
  (void)run(*loaded.model, {});
  EXPECT_EQ(loaded.model->expert_counts().misses, first.misses);
}

TEST_F(PooledModel, APoolTooSmallForTwoRecordsIsRefusedWithTheNeed) {
  auto backend = backend::create_backend("cpu", {1});
  auto source = store::open_store(store_);
  ASSERT_TRUE(backend.ok() && source.ok());
  const auto refused = model::Model::load(std::move(source).value(), **backend, {.pool_bytes = slot_});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("two records"), std::string::npos) << refused.error().message;
}

TEST_F(PooledModel, ADamagedRecordFailsItsRequestAndNoOther) {
  // One bit of every record of layer 1 but the first's.
  const auto source = store::open_store(store_);
  const std::int64_t experts = (*source)->config().experts;
  {
    std::fstream file(store_ / "experts.q4.bin", std::ios::binary | std::ios::in | std::ios::out);
    for (std::int64_t e = 1; e < experts; ++e) {
      const auto at = static_cast<std::streamoff>((experts + e) * static_cast<std::int64_t>(slot_) + 100);
      file.seekg(at);
      const int byte = file.get();
      file.seekp(at);
      file.put(static_cast<char>(byte ^ 1));
    }
  }
  const auto loaded = test::load_model(store_, "cpu", {.pool_bytes = 20 * slot_});
  ASSERT_NE(loaded.model, nullptr);
  for (int i = 0; i < 3; ++i) {
    const auto failed = decode::run_logits(*loaded.model, ids_, {});
    ASSERT_FALSE(failed.ok());
    EXPECT_NE(failed.error().message.find("of layer 1"), std::string::npos) << failed.error().message;
  }
}

}  // namespace
}  // namespace sluice
