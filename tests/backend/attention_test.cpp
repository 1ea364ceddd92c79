// Attention over selections: grouping of heads, lists against dense rows, rows that see nothing.
#include <limits>
#include <numeric>

#include "backend/on_backend.h"

namespace sluice::backend {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class Attention : public OnBackend {
 protected:
  static constexpr AttentionShape kShape{6, 2, 64};

  static std::vector<float> reference(const std::vector<float>& q, const std::vector<float>& keys,
                                      const std::vector<float>& values,
                                      const std::vector<std::vector<std::uint32_t>>& rows,
                                      AttentionShape shape = kShape) {
    const auto heads = static_cast<std::size_t>(shape.heads);
    const auto kv_heads = static_cast<std::size_t>(shape.kv_heads);
    const auto dim = static_cast<std::size_t>(shape.head_dim);
    std::vector<float> out;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::size_t h = 0; h < heads; ++h) {
        std::vector<double> sum(dim);
        double total = 0;
        for (const std::uint32_t t : rows[r]) {
          const std::size_t at = (t * kv_heads + h / (heads / kv_heads)) * dim;
          double dot = 0;
          for (std::size_t i = 0; i < dim; ++i)
            dot += static_cast<double>(q[(r * heads + h) * dim + i]) * keys[at + i];
          const double p = std::exp(dot / std::sqrt(static_cast<double>(dim)));
          total += p;
          for (std::size_t i = 0; i < dim; ++i) sum[i] += p * values[at + i];
        }
        for (const double v : sum) out.push_back(total > 0 ? static_cast<float>(v / total) : 0);
      }
    }
    return out;
  }
};

TEST_P(Attention, MatchesTheFormulaForDenseAndListedRows) {
  Numbers numbers(1);
  const std::int64_t tokens = 50;
  const auto keys = numbers.floats(tokens * 2 * 64, -2, 2);
  const auto values = numbers.floats(tokens * 2 * 64);
  const auto q = numbers.floats(4 * 6 * 64, -2, 2);
  const std::vector<std::vector<std::uint32_t>> rows{{0, 1, 2, 3, 4, 5, 6}, {3, 9, 10, 11, 40, 49}, {}, {7}};
  const std::int64_t stride = 9;
  std::vector<std::uint32_t> list(4 * 9, 0xffffffffU);
  std::vector<std::uint32_t> count;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (r != 0)
      std::copy(rows[r].begin(), rows[r].end(), list.begin() + static_cast<std::ptrdiff_t>(r) * stride);
    count.push_back(static_cast<std::uint32_t>(rows[r].size()));
  }
  const std::vector<std::uint8_t> dense{1, 0, 0, 0};
  const TokenSelection selection{upload(list), stride, upload(count), upload(dense), 7};
  const auto out = upload(std::vector<float>(4 * 6 * 64, 5.0F));
  backend().attention(kShape, upload(q), upload(keys), upload(values), selection, 4, out);
  const auto found = download(out, 4 * 6 * 64);
  EXPECT_LT(relative_l2(found, reference(q, keys, values, rows)), 2e-6);
  for (std::size_t i = 2 * 6 * 64; i < 3 * 6 * 64; ++i) EXPECT_EQ(found[i], 0);
}

TEST_P(Attention, AListOfEveryTokenIsDense) {
  Numbers numbers(2);
  for (const std::int64_t tokens : {1, 2, 5, 63, 64, 65, 200}) {
    const auto keys = upload(numbers.floats(tokens * 2 * 64));
    const auto values = upload(numbers.floats(tokens * 2 * 64));
    const auto q = upload(numbers.floats(6 * 64));
    std::vector<std::uint32_t> list(static_cast<std::size_t>(tokens));
    std::iota(list.begin(), list.end(), 0U);
    const auto count = upload(std::vector<std::uint32_t>{static_cast<std::uint32_t>(tokens)});
    const auto listed = memory<float>(6 * 64);
    const auto dense = memory<float>(6 * 64);
    backend().attention(kShape, q, keys, values, {upload(list), tokens, count, {}, tokens}, 1, listed);
    backend().attention(kShape, q, keys, values, {{}, 0, count, upload(std::vector<std::uint8_t>{1}), tokens},
                        1, dense);
    EXPECT_LT(relative_l2(download(listed, 6 * 64), download(dense, 6 * 64)), 1e-6) << tokens;
  }
}

TEST_P(Attention, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  Numbers numbers(3);
  const std::int64_t tokens = 80;
  const std::int64_t rows = 9;
  const auto keys = upload(numbers.floats(tokens * 2 * 64));
  const auto values = upload(numbers.floats(tokens * 2 * 64));
  const auto q = upload(numbers.floats(rows * 6 * 64));
  std::vector<std::uint32_t> count;
  for (std::int64_t r = 0; r < rows; ++r) count.push_back(static_cast<std::uint32_t>(tokens - rows + r + 1));
  const auto device_count = upload(count);
  const auto dense = upload(std::vector<std::uint8_t>(static_cast<std::size_t>(rows), 1));
  const auto out = memory<float>(rows * 6 * 64);
  backend().attention(kShape, q, keys, values, {{}, 0, device_count, dense, tokens}, rows, out);
  const auto together = download(out, rows * 6 * 64);
  for (std::int64_t r = 0; r < rows; ++r) {
    backend().attention(kShape, q + r * 6 * 64, keys, values, {{}, 0, device_count + r, dense + r, tokens}, 1,
                        out);
    EXPECT_EQ(bits_of_values(download(out, 6 * 64)),
              bits_of_values(std::span(together).subspan(static_cast<std::size_t>(r * 6 * 64), 6 * 64)));
  }
}

TEST_P(Attention, LargeScoresDoNotOverflow) {
  Numbers numbers(4);
  const auto keys = numbers.floats(8 * 2 * 64, 50, 100);
  const auto values = numbers.floats(8 * 2 * 64);
  const auto q = numbers.floats(6 * 64, 50, 100);
  const auto count = upload(std::vector<std::uint32_t>{8});
  const auto out = memory<float>(6 * 64);
  backend().attention(kShape, upload(q), upload(keys), upload(values),
                      {{}, 0, count, upload(std::vector<std::uint8_t>{1}), 8}, 1, out);
  for (const float v : download(out, 6 * 64)) EXPECT_TRUE(std::abs(v) <= 1) << v;
}

TEST_P(Attention, EveryShapeMatchesTheFormula) {
  Numbers numbers(8);
  struct Case {
    AttentionShape shape;
    std::int64_t tokens;
    std::uint32_t seen;
  };
  for (const auto& [shape, tokens, seen] :
       {Case{{24, 2, 256}, 2200, 2051}, Case{{4, 2, 128}, 300, 130}, Case{{40, 2, 32}, 90, 66},
        Case{{3, 1, 20}, 100, 66}, Case{{5, 5, 3}, 10, 1}, Case{{2, 1, 250}, 80, 79}}) {
    const auto keys = numbers.floats(tokens * shape.kv_heads * shape.head_dim, -2, 2);
    const auto values = numbers.floats(tokens * shape.kv_heads * shape.head_dim);
    const auto q = numbers.floats(2 * shape.heads * shape.head_dim, -2, 2);
    // Row 0 sees a prefix, row 1 a list without the first tokens.
    std::vector<std::vector<std::uint32_t>> rows(2, std::vector<std::uint32_t>(seen));
    std::iota(rows[0].begin(), rows[0].end(), 0U);
    std::iota(rows[1].begin(), rows[1].end(), static_cast<std::uint32_t>(tokens) - seen);
    std::vector<std::uint32_t> list(seen, 0xffffffffU);
    list.insert(list.end(), rows[1].begin(), rows[1].end());
    const std::int64_t width = 2 * shape.heads * shape.head_dim;
    const auto out = memory<float>(width);
    backend().attention(shape, upload(q), upload(keys), upload(values),
                        {upload(list), seen, upload(std::vector<std::uint32_t>(2, seen)),
                         upload(std::vector<std::uint8_t>{1, 0}), seen},
                        2, out);
    EXPECT_LT(relative_l2(download(out, width), reference(q, keys, values, rows, shape)), 2e-6)
        << shape.heads << " heads of " << shape.head_dim;
  }
}

// A device may give a group a whole row or a part of it, by how many rows there are.
TEST_P(Attention, ARowsBitsDoNotDependOnHowItsTokensAreSplit) {
  Numbers numbers(9);
  const std::vector<std::uint32_t> counts{1000, 513, 0, 512, 449, 64, 65, 1};
  const auto rows = static_cast<std::int64_t>(counts.size());
  const auto keys = upload(numbers.floats(1000 * 2 * 64));
  const auto values = upload(numbers.floats(1000 * 2 * 64));
  const auto q = upload(numbers.floats(rows * 6 * 64, -2, 2));
  const auto count = upload(counts);
  const auto dense = upload(std::vector<std::uint8_t>(counts.size(), 1));
  const auto out = memory<float>(rows * 6 * 64);
  const auto attend = [&](std::int64_t at_once) {
    for (std::int64_t r = 0; r < rows; r += at_once) {
      backend().attention(kShape, q + r * 6 * 64, keys, values, {{}, 0, count + r, dense + r, 1000}, at_once,
                          out + r * 6 * 64);
    }
    return bits_of_values(download(out, rows * 6 * 64));
  };
  const auto together = attend(rows);
  EXPECT_EQ(attend(1), together);
  EXPECT_EQ(attend(2), together);
  EXPECT_EQ(attend(4), together);
}

TEST_P(Attention, EightBitKeysAndValuesMatchTheirNumbers) {
  Numbers numbers(5);
  for (const std::int64_t tokens : {1, 3, 70, 300}) {
    const std::int64_t count = tokens * 2 * 64;
    std::vector<std::int8_t> codes[2];
    std::vector<std::uint16_t> scales[2];
    std::vector<float> values[2];
    for (int which = 0; which < 2; ++which) {
      for (std::int64_t i = 0; i < count; ++i) {
        if (i % 32 == 0) scales[which].push_back(to_half(numbers.uniform(0.002F, 0.03F)).bits);
        codes[which].push_back(static_cast<std::int8_t>(static_cast<int>(numbers.below(255)) - 127));
        values[which].push_back(codes[which].back() * to_float(Half{scales[which].back()}));
      }
    }
    std::vector<std::uint32_t> list;
    for (std::int64_t t = 0; t < tokens; ++t) {
      if (t % 3 != 1) list.push_back(static_cast<std::uint32_t>(t));
    }
    const auto q = numbers.floats(6 * 64);
    const auto out = memory<float>(6 * 64);
    const KeysValuesQ8 cache{upload(codes[0]), upload(scales[0]), upload(codes[1]), upload(scales[1])};
    const auto listed = static_cast<std::int64_t>(list.size());
    const auto attend = [&](std::int64_t seen) {
      const auto counts = upload(std::vector<std::uint32_t>{static_cast<std::uint32_t>(seen)});
      backend().attention_q8(kShape, upload(q), cache, {upload(list), listed, counts, {}, listed}, 1, out);
      return download(out, 6 * 64);
    };
    EXPECT_LT(relative_l2(attend(listed), reference(q, values[0], values[1], {list})), 1e-5) << tokens;
    EXPECT_EQ(attend(0), std::vector<float>(6 * 64));
  }
}

// Every backend rounds alike: what one wrote another may read.
TEST_P(Attention, RoundingToEightBitsIsToTheNearestOfTheGroup) {
  constexpr std::int64_t kGroups = 70;
  Numbers numbers(8);
  std::vector<float> x;
  for (std::int64_t g = 0; g < kGroups; ++g) {
    // Of every size from below the smallest half to above the largest.
    const float size = std::ldexp(1.0F, static_cast<int>(g) - 40);
    for (int i = 0; i < 32; ++i) x.push_back(numbers.uniform(-size, size));
  }
  for (int i = 0; i < 32; ++i) {
    x[static_cast<std::size_t>(40 * 32 + i)] = 0;
    // A scale of exactly one: halves between codes go to the even one.
    x[static_cast<std::size_t>(41 * 32 + i)] = i == 0 ? 127 : static_cast<float>(i) - 8.5F;
  }
  x[42 * 32 + 3] = std::nanf("");
  x[43 * 32 + 31] = -kInf;
  const auto codes = memory<std::int8_t>(kGroups * 32);
  const auto scales = memory<std::uint16_t>(kGroups);
  backend().quantise_q8(upload(x), kGroups, codes, scales);
  const auto got = download(codes, kGroups * 32);
  const auto got_scales = download(scales, kGroups);
  for (std::size_t g = 0; g < static_cast<std::size_t>(kGroups); ++g) {
    const float* group = &x[g * 32];
    if (g == 42 || g == 43) {
      EXPECT_TRUE(std::isnan(to_float(Half{got_scales[g]}))) << g;
      continue;
    }
    float most = 0;
    for (int i = 0; i < 32; ++i) most = std::max(most, std::abs(group[i]));
    const Half scale = to_half(std::min(most / 127, 65504.0F));
    EXPECT_EQ(got_scales[g], scale.bits) << g;
    for (std::size_t i = 0; i < 32; ++i) {
      const float by = to_float(scale);
      const float code = by == 0 ? 0 : std::clamp(std::nearbyint(group[i] / by), -127.0F, 127.0F);
      EXPECT_EQ(got[g * 32 + i], static_cast<std::int8_t>(code)) << group[i] << " by " << by;
    }
  }
  EXPECT_EQ(got[41 * 32 + 9], 0);   // 0.5
  EXPECT_EQ(got[41 * 32 + 10], 2);  // 1.5
  backend().quantise_q8(upload(x), 0, codes, scales);
}

// The same rows as float32 takes, dense and listed, and each as if it were alone.
TEST_P(Attention, EightBitRowsAreThoseOfTheirNumbers) {
  Numbers numbers(9);
  constexpr std::int64_t kTokens = 700;
  constexpr std::int64_t kRows = 5;
  constexpr std::int64_t kNumbers = kTokens * 2 * 64;
  const auto keys = upload(numbers.floats(kNumbers, -2, 2));
  const auto values = upload(numbers.floats(kNumbers));
  const KeysValuesQ8 cache{memory<std::int8_t>(kNumbers), memory<std::uint16_t>(kNumbers / 32),
                           memory<std::int8_t>(kNumbers), memory<std::uint16_t>(kNumbers / 32)};
  backend().quantise_q8(keys, kNumbers / 32, cache.keys, cache.key_scales);
  backend().quantise_q8(values, kNumbers / 32, cache.values, cache.value_scales);
  const auto numbers_of = [&](Dev<std::int8_t> codes, Dev<std::uint16_t> scales) {
    const auto code = download(codes, kNumbers);
    const auto scale = download(scales, kNumbers / 32);
    std::vector<float> all;
    for (std::size_t i = 0; i < code.size(); ++i) all.push_back(code[i] * to_float(Half{scale[i / 32]}));
    return upload(all);
  };
  const auto key_numbers = numbers_of(cache.keys, cache.key_scales);
  const auto value_numbers = numbers_of(cache.values, cache.value_scales);
  const auto q = upload(numbers.floats(kRows * 6 * 64, -2, 2));
  std::vector<std::uint32_t> list(kRows * kTokens);
  for (std::size_t i = 0; i < list.size(); ++i) list[i] = static_cast<std::uint32_t>(i % kTokens / 2 * 2);
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t t = 0; t < 350; ++t) list[r * kTokens + t] = static_cast<std::uint32_t>(2 * t + r % 2);
  }
  const TokenSelection selection{upload(list), kTokens,
                                 upload(std::vector<std::uint32_t>{700, 350, 1, 0, 349}),
                                 upload(std::vector<std::uint8_t>{1, 0, 1, 0, 0}), kTokens};
  const auto expected = memory<float>(kRows * 6 * 64);
  const auto out = memory<float>(kRows * 6 * 64);
  backend().attention(kShape, q, key_numbers, value_numbers, selection, kRows, expected);
  backend().attention_q8(kShape, q, cache, selection, kRows, out);
  const auto together = download(out, kRows * 6 * 64);
  EXPECT_EQ(bits_of_values(together), bits_of_values(download(expected, kRows * 6 * 64)));
  for (std::int64_t r = 0; r < kRows; ++r) {
    const TokenSelection one{selection.tokens + r * kTokens, kTokens, selection.count + r,
                             selection.dense + r, kTokens};
    backend().attention_q8(kShape, q + r * 6 * 64, cache, one, 1, out + r * 6 * 64);
  }
  EXPECT_EQ(bits_of_values(download(out, kRows * 6 * 64)), bits_of_values(together));
}

TEST_P(Attention, GateMultipliesEachHeadByItsOwn) {
  Numbers numbers(6);
  // Query and gate side by side, as the projection gives them.
  const Backend::HeadsIn in{3, 32, 3 * 64, 64};
  const auto qg = numbers.floats(2 * 3 * 64, -5, 5);
  const auto values = numbers.floats(2 * 3 * 32);
  std::vector<float> expected;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float gate = qg[i / 32 * 64 + 32 + i % 32];
    expected.push_back(values[i] / (1 + std::exp(-gate)));
  }
  const auto out = upload(values);
  backend().attention_gate(in, upload(qg) + 32, 2, out);
  EXPECT_LT(relative_l2(download(out, 2 * 3 * 32), expected), 1e-6);
}

TEST_P(Attention, NormRopeRotatesTheFirstDimsInHalves) {
  Numbers numbers(7);
  const std::int64_t rows = 3;
  const Backend::HeadsIn in{2, 32, 100, 40};
  const auto x = numbers.floats(rows * 100);
  const auto w = numbers.floats(32);
  std::vector<float> cos;
  std::vector<float> sin;
  for (int i = 0; i < 3 * 4; ++i) {
    const float angle = numbers.uniform(-3, 3);
    cos.push_back(std::cos(angle));
    sin.push_back(std::sin(angle));
  }
  std::vector<float> expected;
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t h = 0; h < 2; ++h) {
      std::vector<double> n(32);
      double sum = 0;
      for (std::size_t i = 0; i < 32; ++i) {
        n[i] = x[r * 100 + h * 40 + i];
        sum += n[i] * n[i];
      }
      for (std::size_t i = 0; i < 32; ++i) n[i] *= w[i] / std::sqrt(sum / 32 + 1e-6);
      for (std::size_t i = 0; i < 32; ++i) {
        if (i < 4) {
          expected.push_back(static_cast<float>(n[i] * cos[r * 4 + i] - n[i + 4] * sin[r * 4 + i]));
        } else if (i < 8) {
          expected.push_back(static_cast<float>(n[i] * cos[r * 4 + i - 4] + n[i - 4] * sin[r * 4 + i - 4]));
        } else {
          expected.push_back(static_cast<float>(n[i]));
        }
      }
    }
  }
  const auto out = memory<float>(rows * 2 * 32);
  backend().norm_rope(in, upload(x), upload(w), 1e-6F, {8, upload(cos), upload(sin)}, rows, out);
  EXPECT_LT(relative_l2(download(out, rows * 2 * 32), expected), 1e-6);
}

class MaskedSoftmax : public OnBackend {
 protected:
  std::vector<float> run(const std::vector<float>& scores, const std::vector<std::uint32_t>& mask,
                         std::int64_t rows, std::int64_t stride, std::int64_t queries, std::int64_t base) {
    const auto out = upload(std::vector<std::uint16_t>(scores.size(), 0x7e00));
    backend().softmax_selected(upload(scores), upload(mask), rows, stride, queries, base, 4,
                               static_cast<std::int64_t>(mask.size()) / queries, out);
    std::vector<float> p;
    for (const std::uint16_t bits : download(out, static_cast<std::int64_t>(scores.size()))) {
      p.push_back(to_float(Half{bits}));
    }
    return p;
  }
};

TEST_P(MaskedSoftmax, WhatARowDoesNotSeeIsNeverReadAndGetsZero) {
  // Three queries at positions 9, 10, 11; blocks 0 and 1 complete for the first two, 0 to 2 for the last.
  const std::int64_t stride = 16;
  std::vector<float> scores(3 * 16, NAN);
  const auto put = [&](std::size_t row, std::initializer_list<std::size_t> tokens) {
    for (const std::size_t t : tokens) scores[row * 16 + t] = static_cast<float>(t % 3);
  };
  put(0, {4, 5, 6, 7, 8, 9});
  put(1, {0, 1, 2, 3, 8, 9, 10});
  put(2, {8, 9, 10, 11});
  const auto p = run(scores, {0b10, 0b01, 0b100}, 3, stride, 3, 9);
  for (std::size_t r = 0; r < 3; ++r) {
    double total = 0;
    for (std::size_t t = 0; t < 16; ++t) {
      const float score = scores[r * 16 + t];
      EXPECT_EQ(p[r * 16 + t] > 0, !std::isnan(score)) << r << " " << t;
      total += p[r * 16 + t];
    }
    EXPECT_NEAR(total, 1, 2e-3);
  }
}

TEST_P(MaskedSoftmax, ARowThatSeesNothingGivesZeros) {
  // Position 7 ends a block, and no block is chosen: there is no tail either.
  EXPECT_EQ(run(std::vector<float>(8, 1.0F), {0}, 1, 8, 1, 7), std::vector<float>(8));
  EXPECT_EQ(run(std::vector<float>(8, NAN), {0}, 1, 8, 1, 7), std::vector<float>(8));
  EXPECT_EQ(run(std::vector<float>(8, -kInf), {3}, 1, 8, 1, 7), std::vector<float>(8));
}

TEST_P(MaskedSoftmax, TheTailIsVisibleWhateverTheMaskSays) {
  for (std::int64_t position = 0; position < 12; ++position) {
    const auto p = run(std::vector<float>(16, 3.0F), {0}, 1, 16, 1, position);
    const std::int64_t tail = (position + 1) % 4;
    for (std::int64_t t = 0; t < 16; ++t) {
      const bool sees = t <= position && t > position - tail;
      EXPECT_NEAR(p[static_cast<std::size_t>(t)], sees ? 1.0 / static_cast<double>(tail) : 0, 1e-3);
    }
  }
}

TEST_P(MaskedSoftmax, LargeScoresDoNotOverflow) {
  const auto p = run({30000, 30000, -30000, 29990, 30000, 0, 0, 0}, {1}, 1, 8, 1, 4);
  EXPECT_NEAR(p[0], 1.0 / 3, 1e-3);
  EXPECT_EQ(p[2], 0);
  EXPECT_NEAR(p[4], 1.0 / 3, 1e-3);
}

SLUICE_ON_EVERY_BACKEND(Attention);
SLUICE_ON_EVERY_BACKEND(MaskedSoftmax);

}  // namespace
}  // namespace sluice::backend
