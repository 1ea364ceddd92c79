// Experts in a device's memory, in host memory and on disk: the same bits wherever they are.
#include <gtest/gtest.h>

#include "decode/generate.h"
#include "decode/logits_run.h"
#include "experts/device_tier.h"
#include "pack/pack.h"
#include "store/store_format.h"
#include "support/fixtures.h"
#include "support/lazy_device.h"
#include "support/loaded_model.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class TieredModel : public testing::Test {
 protected:
  void pack(const fs::path& model) {
    const auto source = store::open_checkpoint(model);
    ASSERT_TRUE(source.ok());
    ASSERT_TRUE(pack::pack(**source, store_, {}).ok());
    const auto packed = store::open_store(store_);
    ASSERT_TRUE(packed.ok());
    const spec::RecordLayout& layout = (*packed)->record_layout();
    slot_ = static_cast<std::uint64_t>(store::slot_bytes(layout));
    device_slot_ = experts::DeviceTier::slot_bytes(layout);
    experts_ = static_cast<std::uint64_t>((*packed)->config().experts);
    records_ = static_cast<std::uint64_t>((*packed)->config().record_layers()) * experts_;
  }
  /// `slots` of the host's pool, 0: all are in the device's memory; `device_slots` before it.
  test::LoadedModel load(std::uint64_t slots, std::uint64_t device_slots, bool lazy = true,
                         bool in_place = true) {
    model::ModelOptions options;
    options.pool_bytes = slots * slot_;
    options.device_pool_bytes = device_slots * device_slot_;
    options.stream.in_place = in_place;
    test::LoadedModel loaded;
    if (!lazy) return test::load_model(store_, "emulated", options, 2);
    loaded.backend = test::lazy_backend();
    auto source = store::open_source(store_);
    auto model = model::Model::load(std::move(source).value(), *loaded.backend, options);
    EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message);
    if (model.ok()) loaded.model = std::move(model).value();
    return loaded;
  }

  test::TempFolder folder_;
  const fs::path store_ = folder_ / "store";
  std::uint64_t slot_ = 0, device_slot_ = 0, experts_ = 0, records_ = 0;
};

TEST_F(TieredModel, EveryPoolOfBothKindsGivesTheSameBits) {
  const fs::path model = fs::path(SLUICE_TEST_DATA) / "model" / "tiny4";
  ASSERT_NO_FATAL_FAILURE(pack(model));
  auto ids = test::Fixture::load(model / "expected.safetensors").ids("seven.ids");
  ids.resize(4);
  const auto run = [&](const test::LoadedModel& loaded, std::int64_t rows) {
    auto result = decode::run_logits(*loaded.model, ids, {.rows = rows, .wide = true, .mtp = true});
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    return result.ok() ? std::move(result).value() : decode::LogitsRun{};
  };
  const auto resident = load(0, 0, false);
  ASSERT_NE(resident.model, nullptr);
  const auto wanted = run(resident, 0);
  // The smallest pool, a quarter of the records, all of them; on the device none, a layer's, some, all.
  using Pools = std::vector<std::uint64_t>;
  const std::vector<std::pair<std::uint64_t, Pools>> all = {
      {2, {0, experts_}}, {records_ / 4, {experts_, records_ / 2}}, {records_, {records_ / 4, records_}}};
  for (const auto& [slots, on_device] : all) {
    for (const std::uint64_t device : on_device) {
      const auto loaded = load(slots, device);
      ASSERT_NE(loaded.model, nullptr);
      for (const std::int64_t rows : {0, 1}) {
        const auto found = run(loaded, rows);
        EXPECT_EQ(found.logits, wanted.logits)
            << slots << " slots, " << device << " on the device, rows " << rows;
        EXPECT_EQ(found.wide, wanted.wide)
            << slots << " slots, " << device << " on the device, rows " << rows;
        EXPECT_EQ(found.mtp_logits, wanted.mtp_logits) << slots << " slots, " << device << " on the device";
      }
      EXPECT_EQ(loaded.model->expert_bytes(), slots * slot_);
      EXPECT_EQ(loaded.model->experts().device_bytes(), device * device_slot_);
      const auto counts = loaded.model->expert_counts();
      EXPECT_EQ(counts.device_hits + counts.copied > 0, device > 0);
      if (device == records_) {
        EXPECT_EQ(counts.in_place, 0U);
      }
    }
  }
}

TEST_F(TieredModel, APinnedPoolForAllIsFilledFromTheStart) {
  ASSERT_NO_FATAL_FAILURE(pack(fs::path(SLUICE_TEST_DATA) / "model" / "tiny4"));
  const auto loaded = load(records_, 1, false);
  ASSERT_NE(loaded.model, nullptr);
  loaded.model->settle_experts();
  EXPECT_TRUE(decode::run_logits(*loaded.model, std::vector<std::int32_t>{1, 2}, {}).ok());
  const auto counts = loaded.model->expert_counts();
  EXPECT_EQ(counts.misses + counts.late, 0U);
  EXPECT_EQ(counts.bytes_read, records_ * slot_);
}

TEST_F(TieredModel, TheDemoSaysTheSame) {
  ASSERT_NO_FATAL_FAILURE(pack(fs::path(SLUICE_MODELS) / "demo"));
  const std::vector<std::int32_t> prompt{1, 45, 300, 77, 12, 901, 33, 5, 64, 210};
  const auto say = [&](const test::LoadedModel& loaded) {
    std::vector<std::int32_t> tokens;
    const auto session = std::move(decode::Session::create(*loaded.model, 64)).value();
    EXPECT_TRUE(session->prefill(prompt).ok());
    decode::Sampler sampler({.temperature = 0});
    decode::GenerateOptions options;
    options.max_tokens = 3;
    EXPECT_TRUE(decode::generate(*session, sampler, options, [&](std::int32_t token) {
                  tokens.push_back(token);
                  return true;
                }).ok());
    return tokens;
  };
  const auto resident = load(0, 0, false);
  ASSERT_NE(resident.model, nullptr);
  const auto wanted = say(resident);
  EXPECT_EQ(wanted.size(), 3U);
  EXPECT_EQ(say(load(records_ / 4, 0)), wanted);
  EXPECT_EQ(say(load(records_ / 4, records_ / 8)), wanted);
  EXPECT_EQ(say(load(records_, records_ / 4, false, false)), wanted);
}

}  // namespace
}  // namespace sluice
