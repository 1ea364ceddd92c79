// Plans as people and programs read them, and the engine that keeps to them.
#include "engine/plan_report.h"

#include <gtest/gtest.h>

#include "engine/chat_engine.h"

namespace sluice::engine {
namespace {

struct Planned {
  PlannedModel model;
  MemoryPlan plan;
};

Planned planned(const std::string& name, std::uint64_t usable) {
  Planned out;
  out.model = std::move(open_planned(name)).value();
  out.plan =
      make_plan(out.model.config, out.model.source.get(), {}, {.usable = usable, .given = true}).value();
  return out;
}

std::vector<std::string> keys(const Json& object) {
  std::vector<std::string> list;
  for (const auto& [key, value] : object.items()) {
    list.push_back(key);
    if (!value.is_object()) continue;
    for (const auto& [inner, ignored] : value.items()) list.push_back(key + "." + inner);
  }
  return list;
}

TEST(PlanReport, KeysThatProgramsRelyOn) {
  const std::vector<std::string> expected{"model",
                                          "form",
                                          "backend",
                                          "fits",
                                          "fits_resident",
                                          "missing",
                                          "verdict",
                                          "memory",
                                          "memory.usable",
                                          "memory.given",
                                          "memory.available",
                                          "memory.total",
                                          "memory.reserve",
                                          "parts",
                                          "parts.dense_weights",
                                          "parts.draft_head",
                                          "parts.context",
                                          "parts.working_memory",
                                          "parts.ngram_rows",
                                          "parts.runtime",
                                          "totals",
                                          "totals.without_experts",
                                          "totals.resident",
                                          "totals.smallest_pool",
                                          "totals.pool",
                                          "context",
                                          "context.tokens",
                                          "context.sessions",
                                          "context.session_bytes",
                                          "context.token_bytes",
                                          "experts",
                                          "experts.format",
                                          "experts.group",
                                          "experts.layers",
                                          "experts.records",
                                          "experts.record_bytes",
                                          "experts.slot_bytes",
                                          "experts.file_bytes",
                                          "experts.resident_bytes",
                                          "experts.token_records",
                                          "experts.token_bytes",
                                          "pool",
                                          "pool.slots",
                                          "pool.bytes",
                                          "pool.share",
                                          "pool.least_slots",
                                          "pool.least_bytes",
                                          "device",
                                          "device_pool",
                                          "device_pool.slots",
                                          "device_pool.bytes",
                                          "ngram",
                                          "ngram.rows",
                                          "ngram.row_bytes",
                                          "ngram.table_bytes",
                                          "ngram.token_rows",
                                          "disk",
                                          "disk.checkpoint",
                                          "disk.store"};
  const auto p = planned("flash-next", std::uint64_t{32} << 30);
  EXPECT_EQ(keys(plan_json(p.model, p.plan)), expected);
}

TEST(PlanReport, PartsAddUp) {
  const auto p = planned("flash-next", std::uint64_t{32} << 30);
  const Json json = plan_json(p.model, p.plan);
  std::uint64_t sum = 0;
  for (const auto& [key, value] : json["parts"].items()) sum += value.get<std::uint64_t>();
  EXPECT_EQ(json["totals"]["without_experts"], sum);
  EXPECT_EQ(json["totals"]["pool"], sum + json["pool"]["bytes"].get<std::uint64_t>());
  EXPECT_EQ(json["totals"]["resident"], sum + json["experts"]["resident_bytes"].get<std::uint64_t>());
}

TEST(PlanReport, TheVerdictSaysWhichFormFitsOrWhatIsMissing) {
  EXPECT_EQ(plan_verdict(planned("demo", std::uint64_t{1} << 30).plan), "fits with every expert in memory");
  const auto streamed = plan_verdict(planned("flash-next", std::uint64_t{32} << 30).plan);
  EXPECT_NE(streamed.find("fits with experts read from disk, 37"), std::string::npos) << streamed;
  const auto none = planned("flash-next", std::uint64_t{4} << 30);
  EXPECT_NE(plan_verdict(none.plan).find("does not fit: 2.8"), std::string::npos) << plan_verdict(none.plan);
  EXPECT_NE(plan_verdict(none.plan).find("dense weights with 4.97 GiB"), std::string::npos);
  const std::string text = plan_text(none.model, none.plan);
  EXPECT_NE(text.find("2764800 B in a slot of 2768896 B"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  dense weights           4.97 GiB\n"), std::string::npos) << text;
}

TEST(EngineMemory, AModelThatDoesNotFitIsRefusedBeforeItIsLoaded) {
  const std::string demo = std::string(SLUICE_MODELS) + "/demo";
  bool loading = false;
  EngineOptions options;
  options.context = 512;
  options.pack = false;  // the plan below is of the checkpoint itself
  options.pool = EngineOptions::kAllExperts;
  options.on_load = [&](std::uint64_t, std::uint64_t) { loading = true; };
  const auto model = open_planned(demo);
  const auto plan =
      make_plan(model->config, model->source.get(), {.context = 512, .draft_head = false}, {}).value();
  options.memory = plan.resident_total() - 1;
  const auto refused = ChatEngine::open(demo, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  for (const char* said : {"demo", "memory needed", "given", "largest part", "--ctx", "sluice plan"}) {
    EXPECT_NE(refused.error().message.find(said), std::string::npos) << refused.error().message;
  }
  EXPECT_FALSE(loading);
  options.memory = plan.resident_total();
  const auto opened = ChatEngine::open(demo, options);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  // Left to itself the engine takes a pool where not all experts fit, and says no where that does not either.
  options.pool.reset();
  options.memory = plan.resident_total() - 1;
  const auto pooled = ChatEngine::open(demo, options);
  ASSERT_TRUE(pooled.ok()) << pooled.error().message;
  EXPECT_LT((*pooled)->model().expert_bytes(), (*opened)->model().expert_bytes());
  options.memory = plan.pool_least() - 1;
  EXPECT_EQ(ChatEngine::open(demo, options).error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ((*opened)->model().weight_bytes() + (*opened)->model().expert_bytes() <= options.memory, true);
}

}  // namespace
}  // namespace sluice::engine
