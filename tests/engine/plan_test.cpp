// Memory plans: equal to what loading takes, right at the released size, and honest about what does not fit.
#include "engine/plan.h"

#include <gtest/gtest.h>

#include "engine/plan_model.h"
#include "model/scratch.h"
#include "spec/geometries.h"
#include "store/store_format.h"
#include "support/loaded_model.h"
#include "support/random_model.h"
#include "support/temp_folder.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

std::uint64_t part(const MemoryPlan& plan, std::string_view key) {
  for (const PlanPart& p : plan.parts) {
    if (p.key == key) return p.bytes;
  }
  ADD_FAILURE() << "no part " << key;
  return 0;
}

spec::ModelConfig geometry(std::string_view name, const spec::GeometryOverrides& overrides = {}) {
  const Json json = spec::override_geometry(spec::named_geometry(name).value(), overrides).value();
  return spec::parse_config(json, name).value();
}

MemoryPlan plan_of(const spec::ModelConfig& config, const PlanOptions& options,
                   std::uint64_t usable = 32 * kGiB) {
  auto plan = make_plan(config, nullptr, options, {.usable = usable, .given = true});
  EXPECT_TRUE(plan.ok()) << (plan.ok() ? "" : plan.error().message);
  return plan.ok() ? *plan : MemoryPlan{};
}

std::string refused(const spec::ModelConfig& config, const PlanOptions& options) {
  const auto plan = make_plan(config, nullptr, options, {.usable = kGiB});
  EXPECT_FALSE(plan.ok());
  return plan.ok() ? "" : plan.error().message;
}

class PlanOfFiles : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  [[nodiscard]] static std::filesystem::path folder() {
    const std::string& name = std::get<0>(GetParam());
    if (name == "demo") return std::filesystem::path(SLUICE_MODELS) / name;
    return std::filesystem::path(SLUICE_TEST_DATA) / "model" / name;
  }
};

TEST_P(PlanOfFiles, IsWhatLoadingTakes) {
  const bool mtp = std::get<1>(GetParam());
  const auto loaded = test::load_model(folder(), "scalar", {.mtp = mtp});
  ASSERT_TRUE(loaded.model);
  constexpr std::int64_t kContext = 301;
  const auto plan = make_plan(loaded.model->config(), &loaded.model->source(),
                              {.context = kContext, .sessions = 3, .draft_head = mtp}, {});
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_EQ(plan->draft_head, mtp);
  EXPECT_EQ(part(*plan, "dense_weights") + part(*plan, "draft_head"), loaded.model->weight_bytes());
  EXPECT_EQ(part(*plan, "draft_head") > 0, mtp);
  EXPECT_EQ(plan->experts.resident_bytes, loaded.model->expert_bytes());
  EXPECT_EQ(part(*plan, "ngram_rows"), loaded.model->ngram_bytes());
  const auto& config = loaded.model->config();
  EXPECT_EQ(part(*plan, "working_memory"),
            loaded.model->scratch_bytes() + model::Scratch::scores_cost(config, kContext));
  const auto state = std::move(loaded.model->new_state(kContext)).value();
  const auto host = static_cast<std::uint64_t>(kContext + config.vocab) * 4;  // tokens and logits
  EXPECT_EQ(part(*plan, "context"), 3 * (state->allocated() + host));
}

INSTANTIATE_TEST_SUITE_P(Models, PlanOfFiles,
                         testing::Combine(testing::Values("tiny", "tiny4", "demo"), testing::Bool()));

TEST(Plan, BlockScoresStayBelowTheirCost) {
  const auto config = geometry("demo");
  const auto backend = std::move(backend::create_backend("scalar", {})).value();
  const auto scratch = std::move(model::Scratch::create(config, 8, false, *backend)).value();
  EXPECT_EQ(scratch->bytes(), model::Scratch::cost(config, 8, false));
  EXPECT_EQ(scratch->scores_bytes(), 0U);
  for (std::int64_t tokens = 1; tokens <= 8192; tokens += 97) {
    ASSERT_TRUE(scratch->scores(*backend, tokens / config.indexer->ratio).ok());
  }
  EXPECT_LE(scratch->scores_bytes(), model::Scratch::scores_cost(config, 8192));
}

TEST(Plan, RecordsAndFilesOfTheReleasedModel) {
  const auto config = geometry("flash-next");
  const struct {
    spec::Format format;
    std::int64_t record;
    std::uint64_t slot;
    double file_gb;
  } kForms[] = {{spec::Format::kQ4, 2764800, 2768896, 69.5},
                {spec::Format::kQ3, 2150400, 2162688, 54.3},
                {spec::Format::kQ2, 1536000, 1540096, 38.6}};
  for (const auto& form : kForms) {
    const MemoryPlan plan = plan_of(config, {.packing = pack::PackOptions{.experts = {form.format}}});
    EXPECT_EQ(plan.experts.layout.bytes(), form.record);
    EXPECT_EQ(plan.experts.slot_bytes, form.slot);
    EXPECT_EQ(plan.experts.records, 49 * 512);
    EXPECT_NEAR(static_cast<double>(plan.experts.file_bytes) / 1e9, form.file_gb, 0.05);
  }
  const MemoryPlan plan = plan_of(config, {});
  EXPECT_EQ(plan.experts.layout.format, spec::Format::kQ4);
  EXPECT_EQ(plan.ngram->rows, 320001536);
  EXPECT_EQ(plan.ngram->row_bytes, 100);
  EXPECT_EQ(plan.ngram->token_rows, 16);
  EXPECT_EQ(plan.ngram->table_bytes, 8000039ULL * 4096);
  EXPECT_EQ(plan.context, 16384);
  // Thirteen full layers: keys, values, raw index keys, a block key for every four tokens; and the token.
  EXPECT_EQ(plan.session_token, 13U * (2 * 512 + 128 + 32) * 4 + 4);
}

TEST(Plan, TheReleasedModelIn32GiBStreamsItsExperts) {
  const MemoryPlan plan = plan_of(geometry("flash-next"), {});
  EXPECT_TRUE(plan.fits());
  EXPECT_FALSE(plan.fits_resident());
  EXPECT_LE(plan.pool_total(), 32 * kGiB);
  EXPECT_GT(plan.pool_total() + plan.experts.slot_bytes, 32 * kGiB);  // nothing is left unused
  EXPECT_NEAR(plan.experts.share(), 0.39, 0.02);
  EXPECT_EQ(plan.experts.token_records, 490);
  EXPECT_GT(plan.store_bytes, plan.experts.file_bytes + plan.ngram->table_bytes);
  EXPECT_EQ(plan.file_bytes, 0U);
}

TEST(Plan, TheSmallestPoolIsAStepsUnionAndTheNextLayersTop) {
  EXPECT_EQ(plan_of(geometry("flash-next"), {}).experts.least_slots, 8 * 10 + 10);
  EXPECT_EQ(plan_of(geometry("tiny"), {}).experts.least_slots, 16 + 4);  // all experts of the layer
  EXPECT_EQ(plan_of(geometry("tiny", {.layers = 1, .experts = 4}), {.draft_head = false}).experts.least_slots,
            4);  // all there are
}

TEST(Plan, NgramTablesAreWholePagesOfWholeRows) {
  const auto packed = [](std::int64_t rows, std::int64_t columns) {
    return store::packed_ngram_layout({spec::Format::kBf16, 32, columns, rows});
  };
  const auto bytes = [&](std::int64_t rows, std::int64_t columns) {
    return store::NgramPages(packed(rows, columns)).bytes();
  };
  EXPECT_EQ(bytes(320001536, 160), 8000039LL * 4096);
  EXPECT_EQ(bytes(40, 160), 4096);
  EXPECT_EQ(bytes(41, 160), 2 * 4096);
  EXPECT_EQ(packed(1, 32).row_bytes(), 20);
  EXPECT_EQ(packed(1, 20).row_bytes(), 40);  // no groups of 32: stays bfloat16
  EXPECT_EQ(bytes(3, 4096), 3 * 4096);       // a row of 2560 bytes leaves no room for another
  EXPECT_EQ(bytes(3, 16384), 3 * 16384);     // rows of 10240 bytes: a page is a power of two
}

TEST(Plan, MoreIsNeverLess) {
  const auto config = geometry("flash-next");
  std::uint64_t before = 0;
  for (const std::int64_t context : {1, 2, 3, 4, 5, 100, 4096, 16384, 16385, 262144}) {
    const auto needed = plan_of(config, {.context = context}).pool_least();
    EXPECT_GE(needed, before) << context;
    before = needed;
  }
  EXPECT_GT(plan_of(config, {.sessions = 2}).pool_least(), plan_of(config, {.sessions = 1}).pool_least());
  EXPECT_GT(plan_of(config, {.draft_head = true}).pool_least(),
            plan_of(config, {.draft_head = false}).pool_least());
  std::int64_t slots = 0;
  for (std::uint64_t usable = kGiB; usable < 100 * kGiB; usable += kGiB) {
    const MemoryPlan plan = plan_of(config, {}, usable);
    EXPECT_GE(plan.experts.slots, slots);
    EXPECT_LE(plan.experts.slots, plan.experts.records);
    slots = plan.experts.slots;
  }
  EXPECT_EQ(slots, 49 * 512);
}

TEST(Plan, FewerBitsOfDenseWeightsAreFewerBytes) {
  const auto config = geometry("flash-next");
  const auto dense = [&](store::DenseBits bits) {
    return part(plan_of(config, {.packing = pack::PackOptions{.dense = bits}}), "dense_weights");
  };
  EXPECT_LT(dense(store::DenseBits::kQ4), dense(store::DenseBits::kQ8));
  EXPECT_LT(dense(store::DenseBits::kQ8), dense(store::DenseBits::kSource));
  EXPECT_EQ(dense(store::DenseBits::kQ8), part(plan_of(config, {}), "dense_weights"));
}

TEST(Plan, TheVerdictTurnsAtTheByte) {
  const auto config = geometry("demo");
  const MemoryPlan any = plan_of(config, {});
  const MemoryPlan below = plan_of(config, {}, any.pool_least() - 1);
  EXPECT_FALSE(below.fits());
  EXPECT_EQ(below.missing(), 1U);
  EXPECT_EQ(below.largest(false).key, "context");
  const MemoryPlan least = plan_of(config, {}, any.pool_least());
  EXPECT_TRUE(least.fits());
  EXPECT_FALSE(least.fits_resident());
  EXPECT_EQ(least.missing(), 0U);
  EXPECT_EQ(least.experts.slots, least.experts.least_slots);
  EXPECT_FALSE(plan_of(config, {}, any.resident_total() - 1).fits_resident());
  EXPECT_TRUE(plan_of(config, {}, any.resident_total()).fits_resident());
  EXPECT_EQ(plan_of(config, {}, 1).missing(), any.pool_least() - 1);
}

TEST(Plan, APoolThatWasAskedForIsPartOfTheNeed) {
  const auto config = geometry("flash-next");
  const MemoryPlan plan = plan_of(config, {.pool = 8 * kGiB});
  EXPECT_EQ(plan.experts.slots, static_cast<std::int64_t>(8 * kGiB / 2768896));
  EXPECT_TRUE(plan.fits());
  const MemoryPlan large = plan_of(config, {.pool = 30 * kGiB});
  EXPECT_FALSE(large.fits());
  EXPECT_EQ(large.missing(), large.pool_total() - 32 * kGiB);
}

PlanOptions on_device(std::uint64_t memory, std::optional<std::uint64_t> pool = {}) {
  PlanOptions options;
  options.backend = "cuda";
  options.device_memory = memory;
  options.device_pool = pool;
  return options;
}

TEST(Plan, ADevicesMemoryIsAnotherBudget) {
  const auto config = geometry("flash-next");
  const MemoryPlan host = plan_of(config, {}, 128 * kGiB);
  const MemoryPlan plan = plan_of(config, on_device(40 * kGiB), 128 * kGiB);
  // Nothing is counted twice: what the device holds the host does not.
  EXPECT_EQ(plan.fixed() + plan.device_fixed(), host.fixed() - part(host, "working_memory") +
                                                    part(plan, "working_memory") - part(host, "ngram_rows") +
                                                    part(plan, "ngram_rows"));
  EXPECT_EQ(plan.fixed(), part(plan, "ngram_rows") + part(plan, "runtime"));
  EXPECT_FALSE(plan.fits_resident());
  EXPECT_TRUE(plan.fits_pool());
  EXPECT_EQ(plan.experts.slots, plan.experts.records);
  // The device pool takes what the rest leaves, to the slot.
  EXPECT_LE(plan.device_pool_total(), plan.device->usable());
  EXPECT_GT(plan.device_pool_total() + plan.experts.device_slot_bytes, plan.device->usable());
  // Little host memory is enough where the device has all, and a part of it is never pinned.
  EXPECT_TRUE(plan_of(config, on_device(139 * kGiB), kGiB).fits_resident());
  const MemoryPlan small = plan_of(config, on_device(40 * kGiB), 16 * kGiB);
  EXPECT_TRUE(small.fits_pool());
  EXPECT_LT(small.pool_total(), 13 * kGiB);
}

TEST(Plan, ADevicePoolThatWasAskedForIsTakenOrRefused) {
  const auto config = geometry("flash-next");
  const MemoryPlan some = plan_of(config, on_device(139 * kGiB, 16 * kGiB), 128 * kGiB);
  EXPECT_FALSE(some.fits_resident());
  EXPECT_EQ(some.experts.device_slots, static_cast<std::int64_t>(16 * kGiB / some.experts.device_slot_bytes));
  EXPECT_TRUE(plan_of(config, on_device(139 * kGiB, 100 * kGiB), 128 * kGiB).fits_resident());
  const MemoryPlan none = plan_of(config, on_device(139 * kGiB, 0), 128 * kGiB);
  EXPECT_TRUE(none.fits_pool());
  EXPECT_EQ(none.experts.device_slots, 0);
  const MemoryPlan large = plan_of(config, on_device(40 * kGiB, 60 * kGiB), 128 * kGiB);
  EXPECT_FALSE(large.fits());
  EXPECT_EQ(large.missing(), large.device_pool_total() - large.device->usable());
  EXPECT_FALSE(plan_of(config, on_device(5 * kGiB), 128 * kGiB).fits());
  EXPECT_NE(refused(config, on_device(40 * kGiB, 1000)).find("device pool of 1000 B"), std::string::npos);
  PlanOptions cpu;
  cpu.device_pool = kGiB;
  EXPECT_NE(refused(config, cpu).find("backend cpu"), std::string::npos);
  // A device whose memory is the host's: its pool is counted with the rest.
  cpu.backend = "emulated";
  const MemoryPlan shared = plan_of(config, cpu);
  EXPECT_FALSE(shared.device);
  EXPECT_EQ(shared.pool_total(),
            shared.fixed() + shared.experts.device_bytes() + shared.experts.pool_bytes());
}

TEST(Plan, NonsenseIsRefusedWithNumbers) {
  const auto config = geometry("demo");
  EXPECT_NE(refused(config, {.context = 8193}).find("1 to 8192"), std::string::npos);
  EXPECT_NE(refused(config, {.context = -1}).find("context of -1"), std::string::npos);
  EXPECT_NE(refused(config, {.sessions = 0}).find("0 sessions"), std::string::npos);
  EXPECT_NE(refused(config, {.pool = 1000}).find("pool of 1000 B"), std::string::npos);
  Json odd = *spec::named_geometry("tiny");
  odd["text_config"]["moe_intermediate_size"] = 40;
  EXPECT_NE(refused(*spec::parse_config(odd, "odd"), {}).find("widths 64 and 40 found, multiples of 32"),
            std::string::npos);
}

TEST(Plan, HostileSizesDoNotWrapAround) {
  Json json = *spec::named_geometry("tiny");
  Json& text = json["text_config"];
  text["max_position_embeddings"] = 1 << 30;
  text["num_attention_heads"] = text["num_key_value_heads"] = 1024;
  text["head_dim"] = 4096;
  text["num_hidden_layers"] = 1024;
  text["layer_types"] = std::vector<std::string>(1024, "full_attention");
  text.erase("ple_layer_ids");
  text["rope_parameters"]["partial_rotary_factor"] = 0.002;
  text["rope_parameters"]["mrope_section"] = {2, 1, 1};
  const auto config = spec::parse_config(json, "hostile");
  ASSERT_TRUE(config.ok()) << config.error().message;
  const MemoryPlan plan = plan_of(*config, {.context = 1 << 30, .sessions = 1024}, std::uint64_t{1} << 50);
  EXPECT_FALSE(plan.fits());
  EXPECT_GE(plan.pool_least(), std::uint64_t{1} << 60);
}

TEST(Plan, AModelWithoutItsOptionalParts) {
  Json json = *spec::named_geometry("tiny");
  for (const char* key : {"ple_layer_ids", "mtp_num_hidden_layers", "indexer_n_heads", "indexer_kv_heads",
                          "indexer_head_dim", "indexer_budget", "indexer_compress_ratio"}) {
    json["text_config"].erase(key);
  }
  const MemoryPlan plan = plan_of(*spec::parse_config(json, "plain"), {});
  EXPECT_FALSE(plan.ngram);
  EXPECT_FALSE(plan.draft_head);
  EXPECT_EQ(part(plan, "ngram_rows"), 0U);
  EXPECT_EQ(plan.experts.layers, 4);
}

TEST(Memory, WhatIsGivenCountsAsItIs) {
  const auto given = find_memory(12345);
  EXPECT_EQ(given->usable, 12345U);
  EXPECT_TRUE(given->given);
  const auto found = find_memory(0);
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_FALSE(found->given);
  EXPECT_EQ(found->usable + found->reserve, found->available);
  EXPECT_LE(found->available, found->total);
  EXPECT_LE(found->reserve, 2 * kGiB);
}

TEST(PlannedModel, WhateverThereIsOfIt) {
  const std::string demo = std::string(SLUICE_MODELS) + "/demo";
  const auto whole = open_planned(demo);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->form, "mlx-4bit");
  EXPECT_TRUE(whole->source);
  const auto config = open_planned(demo + "/config.json");
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->form, "config");
  EXPECT_EQ(config->config.hidden, 256);

  const test::TempFolder folder;
  EXPECT_FALSE(open_planned(folder.path().string()).ok());
  folder.write("config.json", dump_json(*spec::named_geometry("flash-next")));
  folder.write("model.safetensors.index.json", "{}");  // what comes before the weights
  const auto bare = open_planned(folder.path().string());
  ASSERT_TRUE(bare.ok()) << bare.error().message;
  EXPECT_FALSE(bare->source);
  EXPECT_EQ(bare->config.layer_count(), 48);
  folder.write("model.safetensors", "broken");
  EXPECT_FALSE(open_planned(folder.path().string()).ok());
  folder.write("config.json", "{");
  EXPECT_FALSE(open_planned((folder / "config.json").string()).ok());

  EXPECT_EQ(open_planned("Qwen3.8-Flash-Next")->config.experts, 512);
  const auto none = open_planned("qwen-9");
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("flash-next, demo, tiny"), std::string::npos);
}

TEST(PlannedModel, AQuantisedConfigAloneIsPlannedAlmostAsItsFiles) {
  const std::string demo = std::string(SLUICE_MODELS) + "/demo";
  const auto whole = open_planned(demo);
  const auto config = open_planned(demo + "/config.json");
  const auto files = make_plan(whole->config, whole->source.get(), {}, {});
  const MemoryPlan alone = plan_of(config->config, {});
  EXPECT_EQ(alone.experts.resident_bytes, files->experts.resident_bytes);
  EXPECT_NEAR(static_cast<double>(alone.fixed()), static_cast<double>(files->fixed()), 0.01 * 125e6);
}

}  // namespace
}  // namespace sluice::engine
