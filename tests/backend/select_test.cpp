// The selector of sparse attention: exact, total in its order, right at every edge of the budget.
#include <algorithm>
#include <limits>
#include <numeric>

#include "backend/on_backend.h"

namespace sluice::backend {
namespace {

constexpr std::uint32_t kPad = 0xffffffffU;

class Select : public OnBackend {
 protected:
  struct Row {
    std::vector<std::uint32_t> tokens, mask;
    std::uint32_t count = 0;
    bool dense = false;
  };

  std::vector<Row> select(IndexShape shape, const std::vector<float>& scores, std::int64_t stride,
                          const std::vector<std::uint32_t>& visible, std::int64_t token_stride) {
    const auto rows = static_cast<std::int64_t>(visible.size());
    const std::int64_t words = (stride + 31) / 32;
    const auto tokens = upload(std::vector<std::uint32_t>(static_cast<std::size_t>(rows * token_stride), 77));
    const auto count = memory<std::uint32_t>(rows);
    const auto dense = upload(std::vector<std::uint8_t>(visible.size(), 9));
    const auto mask = upload(std::vector<std::uint32_t>(static_cast<std::size_t>(rows * words), kPad));
    backend().index_select(shape, upload(scores), stride, upload(visible), rows, tokens, token_stride, count,
                           dense, mask, words);
    const auto all_tokens = download(tokens, rows * token_stride);
    const auto all_masks = download(mask, rows * words);
    const auto counts = download(count, rows);
    const auto flags = download(dense, rows);
    std::vector<Row> out;
    for (std::int64_t r = 0; r < rows; ++r) {
      Row row;
      row.tokens.assign(all_tokens.begin() + r * token_stride, all_tokens.begin() + (r + 1) * token_stride);
      row.mask.assign(all_masks.begin() + r * words, all_masks.begin() + (r + 1) * words);
      row.count = counts[static_cast<std::size_t>(r)];
      EXPECT_LE(flags[static_cast<std::size_t>(r)], 1);
      row.dense = flags[static_cast<std::size_t>(r)] == 1;
      out.push_back(row);
    }
    return out;
  }

  /// The definition, by a stable sort.
  static Row expected(IndexShape shape, const float* scores, std::int64_t stride, std::uint32_t visible,
                      std::int64_t token_stride) {
    const auto ratio = static_cast<std::uint32_t>(shape.ratio);
    const std::uint32_t blocks = visible / ratio;
    std::vector<std::uint32_t> order(blocks);
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      if (std::isnan(scores[a])) return false;
      return std::isnan(scores[b]) || scores[a] > scores[b];
    });
    order.resize(std::min<std::size_t>(order.size(), static_cast<std::size_t>(shape.block_budget)));
    std::sort(order.begin(), order.end());
    Row row;
    row.mask.resize(static_cast<std::size_t>((stride + 31) / 32));
    for (const std::uint32_t b : order) {
      row.mask[b / 32] |= 1U << (b % 32);
      for (std::uint32_t i = 0; i < ratio; ++i) row.tokens.push_back(b * ratio + i);
    }
    for (std::uint32_t t = blocks * ratio; t < visible; ++t) row.tokens.push_back(t);
    row.count = static_cast<std::uint32_t>(row.tokens.size());
    row.dense = blocks <= shape.block_budget;
    row.tokens.resize(static_cast<std::size_t>(token_stride), kPad);
    return row;
  }

  static void expect_same(const Row& found, const Row& wanted) {
    EXPECT_EQ(found.dense, wanted.dense);
    EXPECT_EQ(found.count, wanted.count);
    EXPECT_EQ(found.mask, wanted.mask);
    if (!wanted.dense) {
      EXPECT_EQ(found.tokens, wanted.tokens);
    }
  }
};

TEST_P(Select, ChoosesWhatASortWould) {
  Numbers numbers(1);
  for (const std::int64_t ratio : {1, 4, 5}) {
    for (const std::int64_t budget : {1, 4, 16, 512}) {
      const IndexShape shape{4, 32, ratio, budget};
      const std::int64_t stride = budget * 2 + 40;
      const std::int64_t token_stride = budget * ratio + ratio + 3;
      std::vector<float> scores;
      std::vector<std::uint32_t> visible;
      for (int r = 0; r < 12; ++r) {
        for (std::int64_t b = 0; b < stride; ++b) {
          // relu makes exact zeros common; a few levels make ties everywhere; some rows hold NaN.
          const std::uint32_t level = numbers.below(r % 3 == 0 ? 3 : 5000);
          scores.push_back(r % 4 == 3 && numbers.below(9) == 0 ? NAN : static_cast<float>(level) * 0.125F);
        }
        visible.push_back(1 + numbers.below(static_cast<std::uint32_t>(stride * ratio)));
      }
      const auto found = select(shape, scores, stride, visible, token_stride);
      for (std::size_t r = 0; r < visible.size(); ++r) {
        expect_same(found[r], expected(shape, scores.data() + static_cast<std::int64_t>(r) * stride, stride,
                                       visible[r], token_stride));
      }
    }
  }
}

TEST_P(Select, AmongEqualScoresTheLowestBlocksAreChosen) {
  const IndexShape shape{4, 32, 4, 8};
  const std::vector<float> scores(600, 0.0F);
  const auto rows = select(shape, scores, 600, {2400}, 40);
  std::vector<std::uint32_t> first(32);
  std::iota(first.begin(), first.end(), 0U);
  first.resize(40, kPad);
  EXPECT_EQ(rows[0].tokens, first);
  EXPECT_EQ(rows[0].count, 32U);
}

TEST_P(Select, TheSameCallTwiceGivesTheSameRowsWhateverIsBesideThem) {
  Numbers numbers(2);
  const IndexShape shape{4, 32, 4, 512};
  const std::int64_t stride = 520;
  std::vector<float> scores;
  std::vector<std::uint32_t> visible;
  for (std::uint32_t r = 0; r < 8; ++r) {
    for (std::int64_t b = 0; b < stride; ++b) scores.push_back(static_cast<float>(numbers.below(40)));
    visible.push_back(2048 + 4 + r);
  }
  const auto once = select(shape, scores, stride, visible, 2056);
  for (int again = 0; again < 4; ++again) {
    const auto twice = select(shape, scores, stride, visible, 2056);
    for (std::size_t r = 0; r < 8; ++r) expect_same(twice[r], once[r]);
  }
  for (std::size_t r = 0; r < 8; ++r) {
    const auto first = scores.begin() + static_cast<std::int64_t>(r) * stride;
    const auto alone = select(shape, std::vector<float>(first, first + stride), stride, {visible[r]}, 2056);
    expect_same(alone[0], once[r]);
  }
}

TEST_P(Select, TailsOfZeroToThreeTokensAreVisibleAroundTheBudget) {
  Numbers numbers(3);
  for (const std::int64_t budget : {4, 512}) {
    const IndexShape shape{4, 32, 4, budget};
    const std::int64_t stride = budget + 4;
    const std::int64_t token_stride = budget * 4 + 3;  // exactly enough
    const auto scores = numbers.floats(stride, 0, 1);
    for (std::int64_t n = budget * 4 - 5; n < budget * 4 + 13; ++n) {
      const auto seen = static_cast<std::uint32_t>(n);
      const auto row = select(shape, scores, stride, {seen}, token_stride)[0];
      expect_same(row, expected(shape, scores.data(), stride, seen, token_stride));
      EXPECT_EQ(row.dense, n <= budget * 4 + 3) << n;
      if (row.dense) {
        EXPECT_EQ(row.count, seen);
        continue;
      }
      EXPECT_EQ(row.count, static_cast<std::uint32_t>(budget * 4 + n % 4));
      for (std::int64_t t = n - n % 4; t < n; ++t) {
        EXPECT_TRUE(std::binary_search(row.tokens.begin(), row.tokens.begin() + row.count,
                                       static_cast<std::uint32_t>(t)))
            << n << " " << t;
      }
    }
  }
}

TEST_P(Select, ScoresBeyondTheCompleteBlocksAreNotLookedAt) {
  const IndexShape shape{4, 32, 4, 2};
  std::vector<float> scores(12, 1000.0F);
  for (std::size_t b = 0; b < 5; ++b) scores[b] = static_cast<float>(b);
  const auto row = select(shape, scores, 12, {22}, 12)[0];  // five blocks and a tail of two
  EXPECT_EQ(row.tokens, (std::vector<std::uint32_t>{12, 13, 14, 15, 16, 17, 18, 19, 20, 21, kPad, kPad}));
}

TEST_P(Select, NanScoresAreChosenLast) {
  const IndexShape shape{4, 32, 2, 3};
  const std::vector<float> scores{NAN, 0, NAN, -std::numeric_limits<float>::infinity(), NAN, NAN, NAN, NAN};
  const auto row = select(shape, scores, 8, {16}, 8)[0];
  EXPECT_EQ(row.tokens, (std::vector<std::uint32_t>{0, 1, 2, 3, 6, 7, kPad, kPad}));
  const auto all = select(shape, std::vector<float>(8, NAN), 8, {16}, 8)[0];
  EXPECT_EQ(all.tokens, (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5, kPad, kPad}));
}

TEST_P(Select, TheMaskMayBeAbsent) {
  const IndexShape shape{4, 32, 4, 2};
  const auto tokens = memory<std::uint32_t>(12);
  const auto count = memory<std::uint32_t>(1);
  backend().index_select(shape, upload(std::vector<float>{3, 1, 2}), 3,
                         upload(std::vector<std::uint32_t>{13}), 1, tokens, 12, count,
                         memory<std::uint8_t>(1), {}, 0);
  EXPECT_EQ(download(count, 1)[0], 9U);
  EXPECT_EQ(download(tokens, 12),
            (std::vector<std::uint32_t>{0, 1, 2, 3, 8, 9, 10, 11, 12, kPad, kPad, kPad}));
}

TEST_P(Select, LongContextsAreChosenFromExactly) {
  Numbers numbers(7);
  const IndexShape shape{4, 128, 4, 512};
  const std::int64_t stride = 33000;
  std::vector<float> scores;
  const std::vector<std::uint32_t> visible{131072, 4 * 33000, 2 * 33000 + 3};
  for (std::size_t r = 0; r < visible.size(); ++r) {
    for (std::int64_t b = 0; b < stride; ++b) {
      // All different; a tie that the budget cuts far from the start; numbers that differ in their last bits.
      const float any = numbers.uniform(0, 40);
      scores.push_back(r == 0   ? any
                       : r == 1 ? (b < 32700 ? 0.0F : 1.0F)
                                : 1 + static_cast<float>(numbers.below(600)) * 0x1p-23F);
    }
  }
  const auto found = select(shape, scores, stride, visible, 2051);
  for (std::size_t r = 0; r < visible.size(); ++r) {
    expect_same(found[r], expected(shape, scores.data() + static_cast<std::int64_t>(r) * stride, stride,
                                   visible[r], 2051));
  }
}

TEST_P(Select, ARowNeverAttendsToMoreThanTheBudgetAndItsTailHoweverDeep) {
  Numbers numbers(8);
  const IndexShape shape{4, 128, 4, 512};
  const std::int64_t stride = 32768;
  const std::vector<std::uint32_t> visible{2051, 2052, 2055, 8192, 32768 + 1, 131071};
  const auto scores = numbers.floats(stride * static_cast<std::int64_t>(visible.size()), 0, 9);
  const auto found = select(shape, scores, stride, visible, 2051);
  for (std::size_t r = 0; r < visible.size(); ++r) {
    EXPECT_EQ(found[r].dense, visible[r] <= 2051) << visible[r];
    EXPECT_EQ(found[r].count, 2048 + visible[r] % 4) << visible[r];
  }
}

SLUICE_ON_EVERY_BACKEND(Select);

class Index : public OnBackend {
 protected:
  static constexpr IndexShape kShape{2, 32, 4, 4};

  Rope rope(std::int64_t rows, Numbers& numbers) {
    std::vector<float> cos;
    std::vector<float> sin;
    for (std::int64_t i = 0; i < rows * 8; ++i) {
      const float angle = numbers.uniform(-3, 3);
      cos.push_back(std::cos(angle));
      sin.push_back(std::sin(angle));
    }
    return {16, upload(cos), upload(sin)};
  }
};

TEST_P(Index, BlockKeysComputedInAnyPartsHaveTheSameBits) {
  Numbers numbers(4);
  const auto raw = upload(numbers.floats(20 * 4 * 32));
  const auto w = upload(numbers.floats(32));
  const Rope tables = rope(20, numbers);
  const auto whole = memory<float>(20 * 32);
  backend().index_block_keys(kShape, raw, 0, 20, w, 1e-6F, tables, whole);
  const auto expected = bits_of_values(download(whole, 20 * 32));
  for (std::int64_t cut = 0; cut <= 20; ++cut) {
    const auto parts = memory<float>(20 * 32);
    backend().index_block_keys(kShape, raw, 0, cut, w, 1e-6F, tables, parts);
    const Rope rest{16, tables.cos + cut * 8, tables.sin + cut * 8};
    backend().index_block_keys(kShape, raw, cut, 20, w, 1e-6F, rest, parts);
    EXPECT_EQ(bits_of_values(download(parts, 20 * 32)), expected) << cut;
  }
}

TEST_P(Index, ScoresMatchTheFormulaAndAreZeroAboveTheRowsBlocks) {
  Numbers numbers(5);
  const auto q = numbers.floats(3 * 2 * 32);
  const auto keys = numbers.floats(10 * 32);
  const std::vector<std::uint32_t> blocks{7, 0, 10};
  std::vector<float> expected;
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t b = 0; b < 12; ++b) {
      double sum = 0;
      for (std::size_t h = 0; b < blocks[r] && h < 2; ++h) {
        double dot = 0;
        for (std::size_t i = 0; i < 32; ++i)
          dot += static_cast<double>(q[(r * 2 + h) * 32 + i]) * keys[b * 32 + i];
        sum += std::max(dot, 0.0);
      }
      expected.push_back(static_cast<float>(sum / std::sqrt(32.0)));
    }
  }
  const auto scores = upload(std::vector<float>(3 * 12, 9.0F));
  backend().index_scores(kShape, upload(q), upload(keys), upload(blocks), 3, 12, scores);
  const auto found = download(scores, 3 * 12);
  EXPECT_LT(relative_l2(found, expected), 2e-6);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (i % 12 >= blocks[i / 12]) {
      EXPECT_EQ(bits_of_values(found)[i], 0U);
    }
  }
}

TEST_P(Index, ScoresOfEveryShapeMatchTheFormulaAndDoNotDependOnOtherRows) {
  Numbers numbers(8);
  struct Case {
    std::int64_t heads, dim, rows, stride;
  };
  for (const auto& [heads, dim, rows, stride] :
       {Case{4, 128, 19, 200}, Case{4, 128, 1, 700}, Case{3, 40, 2, 9}, Case{16, 64, 3, 70},
        Case{8, 96, 5, 65}, Case{1, 33, 17, 8}, Case{2, 130, 2, 20}}) {
    const IndexShape shape{heads, dim, 4, 512};
    const auto q = numbers.floats(rows * heads * dim);
    const auto keys = numbers.floats(stride * dim);
    std::vector<std::uint32_t> blocks;
    std::vector<float> expected;
    for (std::int64_t r = 0; r < rows; ++r) {
      blocks.push_back(static_cast<std::uint32_t>(stride - r % 3));
      for (std::int64_t b = 0; b < stride; ++b) {
        double sum = 0;
        for (std::int64_t h = 0; b < stride - r % 3 && h < heads; ++h) {
          double dot = 0;
          for (std::int64_t i = 0; i < dim; ++i) {
            dot += static_cast<double>(q[static_cast<std::size_t>((r * heads + h) * dim + i)]) *
                   keys[static_cast<std::size_t>(b * dim + i)];
          }
          sum += std::max(dot, 0.0);
        }
        expected.push_back(static_cast<float>(sum / std::sqrt(static_cast<double>(dim))));
      }
    }
    const auto device_q = upload(q);
    const auto device_keys = upload(keys);
    const auto device_blocks = upload(blocks);
    const auto scores = memory<float>(rows * stride);
    backend().index_scores(shape, device_q, device_keys, device_blocks, rows, stride, scores);
    const auto found = download(scores, rows * stride);
    EXPECT_LT(relative_l2(found, expected), 2e-6) << heads << " heads of " << dim;
    for (std::int64_t r = 0; r < rows; ++r) {
      backend().index_scores(shape, device_q + r * heads * dim, device_keys, device_blocks + r, 1, stride,
                             scores);
      EXPECT_EQ(bits_of_values(download(scores, stride)),
                bits_of_values(std::span(found).subspan(static_cast<std::size_t>(r * stride),
                                                        static_cast<std::size_t>(stride))));
    }
  }
}

// A needle early in a context four times the budget: its block, and not its neighbour, must be chosen.
TEST_P(Index, ANeedleBeyondTheBudgetIsFoundAtEveryDepth) {
  Numbers numbers(6);
  const std::int64_t tokens = 67;
  const auto needle = numbers.floats(32, 0.5F, 1);
  for (std::uint32_t place = 0; place < 64; ++place) {
    auto raw = numbers.floats(tokens * 32, -0.2F, 0.2F);
    for (std::size_t i = 0; i < 32; ++i) raw[place * 32 + i] = 4 * needle[i];
    std::vector<float> q(needle);
    q.insert(q.end(), needle.begin(), needle.end());
    const Rope still{16, upload(std::vector<float>(16 * 8, 1.0F)), memory<float>(16 * 8)};
    const auto keys = memory<float>(16 * 32);
    const auto scores = memory<float>(16);
    backend().index_block_keys(kShape, upload(raw), 0, 16, upload(std::vector<float>(32, 1.0F)), 1e-6F, still,
                               keys);
    backend().index_scores(kShape, upload(q), keys, upload(std::vector<std::uint32_t>{16}), 1, 16, scores);
    const auto list = memory<std::uint32_t>(20);
    const auto count = memory<std::uint32_t>(1);
    const auto dense = memory<std::uint8_t>(1);
    backend().index_select(kShape, scores, 16, upload(std::vector<std::uint32_t>{67}), 1, list, 20, count,
                           dense, {}, 0);
    const auto chosen = download(list, 20);
    EXPECT_EQ(download(count, 1)[0], 19U);
    EXPECT_NE(std::find(chosen.begin(), chosen.end(), place), chosen.end()) << place;
    const auto found = download(scores, 16);
    EXPECT_EQ(static_cast<std::uint32_t>(std::max_element(found.begin(), found.end()) - found.begin()),
              place / 4);
  }
}

SLUICE_ON_EVERY_BACKEND(Index);

}  // namespace
}  // namespace sluice::backend
