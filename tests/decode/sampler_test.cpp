#include "decode/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace sluice::decode {
namespace {

const std::vector<float> kLogits{0.5F, 3.0F, 1.0F, 3.0F, -2.0F, 2.5F};

std::vector<std::int32_t> draw(const SamplingParams& params, int count,
                               std::span<const float> logits = kLogits) {
  Sampler sampler(params);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(sampler.sample(logits, logits.size()).value());
  return tokens;
}

std::set<std::int32_t> seen(const SamplingParams& params) {
  const auto tokens = draw(params, 2000);
  return {tokens.begin(), tokens.end()};
}

TEST(Sampler, TemperatureZeroIsTheLargestLogitWhateverTheFiltersSay) {
  for (const double top_p : {0.0, 0.5, 0.9, 1.0}) {
    for (const std::int64_t top_k : {0, 1, 3}) {
      EXPECT_EQ(draw({.temperature = 0, .top_p = top_p, .top_k = top_k}, 5), std::vector<std::int32_t>(5, 1));
    }
  }
}

TEST(Sampler, TiesGoToTheLowerId) {
  EXPECT_EQ(argmax(kLogits, kLogits.size()), 1);
}

TEST(Sampler, TopKZeroIsOffNotNone) {
  EXPECT_EQ(seen({.temperature = 3, .top_k = 0, .seed = 1}), (std::set<std::int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(seen({.temperature = 3, .top_k = 100, .seed = 1}), (std::set<std::int32_t>{0, 1, 2, 3, 4, 5}));
}

TEST(Sampler, FiltersKeepWhatTheySay) {
  EXPECT_EQ(seen({.top_k = 1, .seed = 1}), (std::set<std::int32_t>{1}));
  EXPECT_EQ(seen({.top_k = 3, .seed = 1}), (std::set<std::int32_t>{1, 3, 5}));
  EXPECT_EQ(seen({.top_p = 0, .seed = 1}), (std::set<std::int32_t>{1}));  // one token always remains
  // Probabilities: 1 and 3 0.346 each, 5 0.210, 2 0.047, 0 0.028, 4 0.002.
  EXPECT_EQ(seen({.top_p = 0.5, .seed = 1}), (std::set<std::int32_t>{1, 3}));
  EXPECT_EQ(seen({.top_p = 0.9, .seed = 1}), (std::set<std::int32_t>{1, 3, 5}));
  EXPECT_EQ(seen({.min_p = 0.5, .seed = 1}), (std::set<std::int32_t>{1, 3, 5}));
  EXPECT_EQ(seen({.min_p = 0.7, .seed = 1}), (std::set<std::int32_t>{1, 3}));
}

TEST(Sampler, DrawsFollowTheDistribution) {
  const auto tokens = draw({.seed = 3}, 20000);
  double sum = 0;
  for (const float logit : kLogits) sum += std::exp(logit);
  for (std::size_t i = 0; i < kLogits.size(); ++i) {
    const auto count =
        static_cast<double>(std::count(tokens.begin(), tokens.end(), static_cast<std::int32_t>(i)));
    EXPECT_NEAR(count / 20000, std::exp(kLogits[i]) / sum, 0.015) << i;
  }
}

TEST(Sampler, OneSeedGivesOneTextAndNoSeedAnotherEachTime) {
  EXPECT_EQ(draw({.temperature = 5, .seed = 7}, 200), draw({.temperature = 5, .seed = 7}, 200));
  EXPECT_NE(draw({.temperature = 5, .seed = 7}, 200), draw({.temperature = 5, .seed = 8}, 200));
  EXPECT_NE(draw({.temperature = 5}, 200), draw({.temperature = 5}, 200));
  const Sampler sampler(SamplingParams{.temperature = 5});
  EXPECT_EQ(draw({.temperature = 5, .seed = sampler.seed()}, 50),
            draw({.temperature = 5, .seed = sampler.seed()}, 50));
}

TEST(Sampler, PaddingOfTheVocabularyIsNeverChosen) {
  Sampler sampler({.temperature = 0});
  EXPECT_EQ(sampler.sample(std::vector<float>{1, 2, 9}, 2).value(), 1);
}

TEST(Sampler, NanIsAnErrorNotAToken) {
  Sampler greedy({.temperature = 0});
  Sampler drawing({.seed = 1});
  for (auto* sampler : {&greedy, &drawing}) {
    const auto result = sampler->sample(std::vector<float>{1, NAN, 2}, 3);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(result.error().message.find("token 1"), std::string::npos);
    EXPECT_FALSE(sampler->sample({}, 3).ok());
  }
  EXPECT_EQ(drawing.sample(std::vector<float>{1, INFINITY}, 2).value(), 1);
  EXPECT_EQ(argmax(std::vector<float>{NAN, 1, NAN}, 3), 1);
}

TEST(Sampler, ValuesOutOfRangeAreRefusedByName) {
  const auto refused = [](const SamplingParams& params, const char* name) {
    const auto result = params.check();
    ASSERT_FALSE(result.ok()) << name;
    EXPECT_NE(result.error().message.find(name), std::string::npos) << result.error().message;
  };
  refused({.temperature = -1}, "temperature");
  refused({.temperature = NAN}, "temperature");
  refused({.temperature = INFINITY}, "temperature");
  refused({.top_p = 1.5}, "top-p");
  refused({.top_p = NAN}, "top-p");
  refused({.top_k = -2}, "top-k");
  refused({.min_p = 2}, "min-p");
  EXPECT_TRUE((SamplingParams{.temperature = 0, .top_p = 0.9}.check().ok()));
}

}  // namespace
}  // namespace sluice::decode
