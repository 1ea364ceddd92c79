#include "engine/generation_config.h"

#include <gtest/gtest.h>

namespace sluice::engine {
namespace {

Result<GenerationConfig> parse(const char* text) {
  return parse_generation_config(parse_json(text, "g").value(), "generation_config.json", 7);
}

TEST(GenerationConfig, ReadsWhatTheAuthorsRecommend) {
  const auto config =
      parse(R"({"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.95, "eos_token_id": [3, 4]})")
          .value();
  EXPECT_EQ(config.sampling.temperature, 0.7);
  EXPECT_EQ(config.sampling.top_k, 20);
  EXPECT_EQ(config.sampling.top_p, 0.95);
  EXPECT_EQ(config.stop_tokens, (std::vector<std::int32_t>{3, 4}));
}

TEST(GenerationConfig, WithoutSamplingItIsGreedyAndStopsAtTheModelsEnd) {
  const auto config = parse("{}").value();
  EXPECT_EQ(config.sampling.temperature, 0);
  EXPECT_EQ(config.stop_tokens, std::vector<std::int32_t>{7});
  EXPECT_EQ(parse(R"({"do_sample": false, "temperature": 1})").value().sampling.temperature, 0);
  EXPECT_EQ(parse(R"({"eos_token_id": 9})").value().stop_tokens, std::vector<std::int32_t>{9});
}

TEST(GenerationConfig, NonsenseIsNamed) {
  for (const char* text :
       {R"({"temperature": "hot"})", R"({"do_sample": true, "temperature": -1})", R"({"top_k": -3})",
        R"({"eos_token_id": "x"})", R"({"eos_token_id": [1, -2]})", R"({"eos_token_id": 1e20})", "[]"}) {
    const auto config = parse(text);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_EQ(config.error().message.rfind("generation_config.json", 0), 0U);
  }
}

}  // namespace
}  // namespace sluice::engine
