// Policies on traces: by hand where they can be followed by hand, the optimum against trying everything.
#include "experts/policy_trace.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace sluice::experts {
namespace {

struct Step {
  Use use;
  std::vector<std::pair<std::uint32_t, std::vector<std::uint32_t>>> layers;
};

RouteTrace trace_of(const std::vector<Step>& steps, std::int64_t layers, std::int64_t experts) {
  RouteTrace trace;
  trace.shape = {layers, experts, experts, 1};
  for (const Step& step : steps) {
    trace.begin_step(step.use, 1);
    for (const auto& [layer, ids] : step.layers) {
      trace.begin_layer(layer);
      for (const std::uint32_t id : ids) {
        trace.ids.push_back(id);
        trace.rows.push_back(1);
      }
    }
  }
  return trace;
}

/// Decode steps of one layer that choose one expert each: "ABCA".
RouteTrace letters(std::string_view text) {
  std::vector<Step> steps;
  for (const char c : text) {
    // Small letters are of a prefill.
    const bool decode = c < 'a';
    steps.push_back({decode ? Use::kDecode : Use::kPrefill,
                     {{0, {static_cast<std::uint32_t>(c - (decode ? 'A' : 'a'))}}}});
  }
  return trace_of(steps, 1, 26);
}

std::uint64_t hits(std::string_view text, Policy policy, std::size_t slots) {
  return replay(letters(text), policy, {.slots = slots}).hits;
}

TEST(PolicyTrace, LruKeepsWhatWasTouchedLast) {
  EXPECT_EQ(hits("ABCADBA", Policy::kLru, 3), 2U);   // D takes B's slot, B takes C's
  EXPECT_EQ(hits("ABCDACBD", Policy::kLru, 3), 1U);  // C alone
  EXPECT_EQ(hits("ABCDABCD", Policy::kLru, 3), 0U);
  EXPECT_EQ(hits("ABCDABCD", Policy::kLru, 4), 4U);
}

TEST(PolicyTrace, ClockGivesASecondChance) {
  // D clears all bits and takes A's slot, A takes B's; C is touched; B goes round and takes C's; D is there.
  EXPECT_EQ(hits("ABCDACBD", Policy::kClock, 3), 2U);
  EXPECT_EQ(hits("ABCDABCD", Policy::kClock, 4), 4U);
}

TEST(PolicyTrace, LfuKeepsWhatWasTouchedMost) {
  EXPECT_EQ(hits("AABCDCBA", Policy::kLfu, 3), 3U);  // D takes B's slot, B takes D's
  EXPECT_EQ(hits("AAAAABCBCBCBC", Policy::kLfu, 2), 4U);
  // With ageing A, of old merit, goes in the end.
  EXPECT_EQ(hits("AAAAABCBCBCBC", Policy::kLfuAged, 2), 6U);
}

TEST(PolicyTrace, HeatLetsAPrefillPassBy) {
  EXPECT_EQ(hits("AABcdefghA", Policy::kHeat, 3), 2U);
  EXPECT_EQ(hits("AABcdefghA", Policy::kLru, 3), 1U);
  PolicyOptions same{.slots = 3};
  same.prefill_weight = 1e3;
  EXPECT_EQ(replay(letters("AABcdefghA"), Policy::kHeat, same).hits, 1U);
}

TEST(PolicyTrace, PrefillsAreCountedApart) {
  const auto counts = replay(letters("ababAB"), Policy::kLru, {.slots = 4});
  EXPECT_EQ(counts.prefill_misses, 2U);
  EXPECT_EQ(counts.prefill_hits, 2U);
  EXPECT_EQ(counts.hits, 2U);
  EXPECT_EQ(counts.misses, 0U);
}

TEST(PolicyTrace, APoolForAllReadsEachRecordOnce) {
  const auto trace = letters("ABCABCDDAXYZA");
  for (std::size_t i = 0; i < kPolicies; ++i) {
    EXPECT_EQ(replay(trace, static_cast<Policy>(i), {.slots = 26}).misses, 7U) << i;
  }
}

TEST(PolicyTrace, AUnionLargerThanThePoolGoesThroughInParts) {
  std::vector<std::uint32_t> all{0, 1, 2, 3, 4, 5, 6, 7, 8};
  const auto trace = trace_of({{Use::kPrefill, {{0, all}, {1, all}}}, {Use::kDecode, {{0, {0, 8}}}}}, 2, 9);
  for (std::size_t i = 0; i < kPolicies; ++i) {
    for (std::size_t slots = 0; slots <= 18; ++slots) {
      const auto counts = replay(trace, static_cast<Policy>(i), {.slots = slots});
      EXPECT_EQ(counts.prefill_misses, 18U) << i << " " << slots;
      EXPECT_EQ(counts.hits + counts.misses, 2U);
    }
  }
}

/// The fewest reads of decode steps, by going through every choice of what to keep.
class BruteForce {
 public:
  BruteForce(std::vector<Step> steps, std::uint32_t experts, std::size_t slots)
      : experts_(experts), slots_(slots) {
    for (const Step& step : steps) {
      for (const auto& [layer, ids] : step.layers) {
        unsigned mask = 0;
        for (const std::uint32_t id : ids) mask |= 1U << (layer * experts_ + id);
        wanted_.push_back({mask, step.use == Use::kDecode});
      }
    }
  }
  std::uint64_t least(std::size_t at = 0, unsigned there = 0) {
    if (at == wanted_.size()) return 0;
    const auto known = known_.find({at, there});
    if (known != known_.end()) return known->second;
    const auto [mask, decode] = wanted_[at];
    const auto reads = decode ? static_cast<std::uint64_t>(__builtin_popcount(mask & ~there)) : 0;
    std::uint64_t best = UINT64_MAX;
    const unsigned others = there & ~mask;
    for (unsigned kept = others;; kept = (kept - 1) & others) {
      if (static_cast<std::size_t>(__builtin_popcount(kept | mask)) <= slots_) {
        best = std::min(best, reads + least(at + 1, kept | mask));
      }
      if (kept == 0) break;
    }
    return known_[{at, there}] = best;
  }

 private:
  std::uint32_t experts_;
  std::size_t slots_;
  std::vector<std::pair<unsigned, bool>> wanted_;
  std::map<std::pair<std::size_t, unsigned>, std::uint64_t> known_;
};

TEST(PolicyTrace, TheOptimumIsTheBestThatCanBeDone) {
  std::mt19937 random(1);
  const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
  for (int round = 0; round < 300; ++round) {
    const std::size_t slots = 2 + below(5);
    const std::uint32_t layers = 1 + below(2), experts = 4;
    std::vector<Step> steps;
    for (std::uint32_t n = 4 + below(12); n > 0; --n) {
      Step step{below(4) == 0 ? Use::kPrefill : Use::kDecode, {}};
      for (std::uint32_t layer = 0; layer < layers; ++layer) {
        std::vector<std::uint32_t> ids;
        for (std::uint32_t id = 0; id < experts && ids.size() < slots / 2; ++id) {
          if (below(3) == 0) ids.push_back(id);
        }
        if (!ids.empty()) step.layers.push_back({layer, ids});
      }
      steps.push_back(step);
    }
    const auto trace = trace_of(steps, layers, experts);
    const std::uint64_t least = BruteForce(steps, experts, slots).least();
    EXPECT_EQ(replay(trace, Policy::kOptimum, {.slots = slots}).misses, least) << "round " << round;
    for (std::size_t i = 0; i + 1 < kPolicies; ++i) {
      EXPECT_GE(replay(trace, static_cast<Policy>(i), {.slots = slots}).misses, least) << i;
    }
  }
}

TEST(PolicyTrace, MadeUpRoutesRepeatForASeedAndAreRoutes) {
  SyntheticOptions options;
  options.layers = 3;
  options.experts = 64;
  options.steps = 60;
  options.conversation = 20;
  options.prompt = 16;
  const RouteTrace a = synthetic_trace(options), b = synthetic_trace(options);
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.steps.size(), 63U);
  EXPECT_EQ(a.tokens(Use::kDecode), 60U);
  EXPECT_EQ(a.tokens(Use::kPrefill), 48U);
  for (std::size_t i = 0; i < a.layers.size(); ++i) {
    const auto ids = a.ids_of(i);
    EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
    EXPECT_GE(ids.size(), 10U);
    EXPECT_LT(ids.back(), 64U);
  }
  options.seed = 2;
  EXPECT_NE(synthetic_trace(options).ids, a.ids);
}

}  // namespace
}  // namespace sluice::experts
