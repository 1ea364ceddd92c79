// Recurrent operations: any chunking of the rows gives the same bits.
#include "backend/on_backend.h"

namespace sluice::backend {
namespace {

class Delta : public OnBackend {
 protected:
  static constexpr DeltaShape kShape{2, 6, 32, 24};
  static constexpr std::int64_t kRow = 2 * 2 * 32 + 6 * 24;
  static constexpr std::int64_t kState = 6 * 32 * 24;
  static constexpr std::int64_t kOut = 6 * 24;
};

TEST_P(Delta, ScanMatchesTheRecurrence) {
  Numbers numbers(1);
  const std::int64_t rows = 20;
  const auto qkv = numbers.floats(rows * kRow);
  const auto decay = numbers.floats(rows * 6, 0.2F, 1);
  const auto beta = numbers.floats(rows * 6, 0, 1);
  const auto start = numbers.floats(kState, -0.1F, 0.1F);
  std::vector<double> state(start.begin(), start.end());
  std::vector<float> expected;
  const auto unit = [](const float* x) {
    double sum = 0;
    for (int i = 0; i < 32; ++i) sum += static_cast<double>(x[i]) * x[i];
    std::vector<double> u;
    for (int i = 0; i < 32; ++i) u.push_back(x[i] / std::sqrt(sum + 1e-6));
    return u;
  };
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    for (std::size_t j = 0; j < 6; ++j) {
      const float* row = qkv.data() + r * kRow;
      const auto q = unit(row + j / 3 * 32);  // grouped: value heads 0, 1, 2 share key head 0
      const auto k = unit(row + 64 + j / 3 * 32);
      double* s = state.data() + j * 32 * 24;
      for (std::size_t c = 0; c < 24; ++c) {
        double d = 0;
        for (std::size_t a = 0; a < 32; ++a) d += s[a * 24 + c] * decay[r * 6 + j] * k[a];
        d = beta[r * 6 + j] * (row[128 + j * 24 + c] - d);
        double out = 0;
        for (std::size_t a = 0; a < 32; ++a) {
          s[a * 24 + c] = s[a * 24 + c] * decay[r * 6 + j] + k[a] * d;
          out += s[a * 24 + c] * q[a] / std::sqrt(32.0);
        }
        expected.push_back(static_cast<float>(out));
      }
    }
  }
  const auto y = memory<float>(rows * kOut);
  const auto after = memory<float>(kState);
  backend().delta_scan(kShape, upload(qkv), upload(decay), upload(beta), rows, upload(start), after, y);
  EXPECT_LT(relative_l2(download(y, rows * kOut), expected), 5e-6);
  const std::vector<float> expected_state(state.begin(), state.end());
  EXPECT_LT(relative_l2(download(after, kState), expected_state), 5e-6);
}

TEST_P(Delta, SeventyRowsInAnyTwoPartsGiveTheSameBits) {
  Numbers numbers(2);
  const std::int64_t rows = 70;
  const auto qkv = upload(numbers.floats(rows * kRow));
  const auto decay = upload(numbers.floats(rows * 6, 0.2F, 1));
  const auto beta = upload(numbers.floats(rows * 6, 0, 1));
  const auto start = upload(numbers.floats(kState, -0.1F, 0.1F));
  const auto y = memory<float>(rows * kOut);
  const auto state = memory<float>(kState);
  backend().delta_scan(kShape, qkv, decay, beta, rows, start, state, y);
  const auto whole = bits_of_values(download(y, rows * kOut));
  const auto whole_state = bits_of_values(download(state, kState));
  for (std::int64_t cut = 0; cut <= rows; ++cut) {
    const auto parts = memory<float>(rows * kOut);
    const auto middle = memory<float>(kState);
    backend().delta_scan(kShape, qkv, decay, beta, cut, start, middle, parts);
    backend().delta_scan(kShape, qkv + cut * kRow, decay + cut * 6, beta + cut * 6, rows - cut, middle,
                         middle, parts + cut * kOut);
    EXPECT_EQ(bits_of_values(download(parts, rows * kOut)), whole) << cut;
    EXPECT_EQ(bits_of_values(download(middle, kState)), whole_state) << cut;
  }
}

TEST_P(Delta, RowByRowAndStateOnlyGiveTheSameState) {
  Numbers numbers(3);
  const std::int64_t rows = 13;
  const auto qkv = upload(numbers.floats(rows * kRow));
  const auto decay = upload(numbers.floats(rows * 6, 0.2F, 1));
  const auto beta = upload(numbers.floats(rows * 6, 0, 1));
  const auto start = memory<float>(kState);
  const auto state = memory<float>(kState);
  const auto y = memory<float>(rows * kOut);
  backend().delta_scan(kShape, qkv, decay, beta, rows, start, state, y);
  const auto whole = bits_of_values(download(state, kState));
  const auto silent = memory<float>(kState);
  backend().delta_scan(kShape, qkv, decay, beta, rows, start, silent, {});
  EXPECT_EQ(bits_of_values(download(silent, kState)), whole);
  const auto single = memory<float>(kState);
  for (std::int64_t r = 0; r < rows; ++r) {
    backend().delta_scan(kShape, qkv + r * kRow, decay + r * 6, beta + r * 6, 1, single, single,
                         y + r * kOut);
  }
  EXPECT_EQ(bits_of_values(download(single, kState)), whole);
  EXPECT_EQ(download(start, kState), std::vector<float>(kState));  // read, never written
}

TEST_P(Delta, AZeroKeyLeavesTheStateToDecay) {
  const auto qkv = memory<float>(kRow);
  const auto start = Numbers(4).floats(kState);
  const auto state = upload(start);
  const auto y = memory<float>(kOut);
  backend().delta_scan(kShape, qkv, upload(std::vector<float>(6, 0.5F)), upload(std::vector<float>(6, 1.0F)),
                       1, state, state, y);
  auto expected = start;
  for (float& v : expected) v *= 0.5F;
  EXPECT_EQ(download(state, kState), expected);
  for (const float v : download(y, kOut)) EXPECT_EQ(v, 0);
}

TEST_P(Delta, GatesMatchTheFormulaAndStayInRangeAtExtremes) {
  const std::vector<float> a{0, 1, -1, 19.9F, 20.1F, 100, -100, 1e30F, -1e30F};
  const auto heads = static_cast<std::int64_t>(a.size());
  const std::vector<float> b{0, 3, -3, 80, -80, 1e30F, -1e30F, 1, 2};
  const std::vector<float> a_log{0, 1, -2, -6, -6, -6, 2, 0, 0};
  const std::vector<float> bias{0.5F, -0.5F, 0, 0, 0, 0, 0, 0, 0};
  const auto decay = memory<float>(heads);
  const auto beta = memory<float>(heads);
  backend().delta_gates(upload(a), upload(b), upload(a_log), upload(bias), 1, heads, decay, beta);
  const auto found_decay = download(decay, heads);
  const auto found_beta = download(beta, heads);
  for (std::size_t j = 0; j < a.size(); ++j) {
    const double x = static_cast<double>(a[j]) + bias[j];
    const double softplus = x > 20 ? x : std::log1p(std::exp(x));
    EXPECT_NEAR(found_decay[j], std::exp(-std::exp(static_cast<double>(a_log[j])) * softplus), 2e-6) << j;
    EXPECT_NEAR(found_beta[j], 1 / (1 + std::exp(-static_cast<double>(b[j]))), 1e-6) << j;
  }
}

TEST_P(Delta, GateNormKnowsBothGates) {
  Numbers numbers(5);
  const auto y = numbers.floats(2 * 3 * 32);
  const auto z = numbers.floats(2 * 3 * 32, -4, 4);
  const auto w = numbers.floats(32);
  const auto out = memory<float>(2 * 3 * 32);
  for (const GateKind kind : {GateKind::kSigmoid, GateKind::kSilu}) {
    std::vector<float> expected;
    for (std::size_t i = 0; i < y.size(); ++i) {
      double sum = 0;
      for (std::size_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) sum += static_cast<double>(y[j]) * y[j];
      const double sigmoid = 1 / (1 + std::exp(-static_cast<double>(z[i])));
      const double gate = kind == GateKind::kSilu ? z[i] * sigmoid : sigmoid;
      expected.push_back(static_cast<float>(y[i] / std::sqrt(sum / 32 + 1e-6) * w[i % 32] * gate));
    }
    backend().delta_gate_norm(upload(y), upload(z), upload(w), 1e-6F, kind, 2, 3, 32, out);
    EXPECT_LT(relative_l2(download(out, 2 * 3 * 32), expected), 1e-6);
  }
}

SLUICE_ON_EVERY_BACKEND(Delta);

class Conv : public OnBackend {
 protected:
  struct Run {
    std::vector<std::uint32_t> out, ring;
  };

  /// Rows 0 .. end - 1 in calls that end at the given positions; the ring starts as NaN.
  Run run(Backend::ConvShape shape, std::int64_t span, const std::vector<float>& in,
          const std::vector<float>& w, const std::vector<std::int64_t>& ends, bool adds) {
    const std::int64_t c = shape.channels;
    const Ring ring{upload(std::vector<float>(static_cast<std::size_t>(span * c), NAN)), span};
    const auto device_in = upload(in);
    const auto device_w = upload(w);
    const auto add = upload(std::vector<float>(in.size(), 0.25F));
    const auto out = memory<float>(static_cast<std::int64_t>(in.size()));
    std::int64_t base = 0;
    for (const std::int64_t end : ends) {
      backend().causal_conv(shape, device_in + base * c, device_w, ring, base, end - base,
                            adds ? add + base * c : Dev<float>(), out + base * c);
      base = end;
    }
    return {bits_of_values(download(out, static_cast<std::int64_t>(in.size()))),
            bits_of_values(download(ring.data, span * c))};
  }
};

TEST_P(Conv, MatchesTheFormulaAndReadsZerosBeforeTheStart) {
  Numbers numbers(6);
  const Backend::ConvShape shape{40, 4, 3};
  const auto in = numbers.floats(12 * 40);
  const auto w = numbers.floats(40 * 4);
  std::vector<float> expected;
  for (std::int64_t r = 0; r < 12; ++r) {
    for (std::int64_t c = 0; c < 40; ++c) {
      double sum = 0;
      for (std::int64_t i = 0; i < 4; ++i) {
        const std::int64_t p = r - (3 - i) * 3;
        if (p >= 0)
          sum += static_cast<double>(w[static_cast<std::size_t>(c * 4 + i)]) *
                 in[static_cast<std::size_t>(p * 40 + c)];
      }
      expected.push_back(static_cast<float>(sum / (1 + std::exp(-sum))));
    }
  }
  const Ring ring{upload(std::vector<float>(9 * 40, NAN)), 9};
  const auto out = memory<float>(12 * 40);
  backend().causal_conv(shape, upload(in), upload(w), ring, 0, 12, {}, out);
  EXPECT_LT(relative_l2(download(out, 12 * 40), expected), 1e-6);
  // Positions 3 .. 11, each at its place modulo the span.
  const auto held = download(ring.data, 9 * 40);
  for (std::size_t p = 3; p < 12; ++p) {
    for (std::size_t c = 0; c < 40; ++c) EXPECT_EQ(held[p % 9 * 40 + c], in[p * 40 + c]);
  }
}

TEST_P(Conv, AnySplitOfTheRowsGivesTheSameBits) {
  Numbers numbers(7);
  for (const auto& shape : {Backend::ConvShape{37, 4, 1}, Backend::ConvShape{64, 4, 3}}) {
    const std::int64_t window = (shape.kernel - 1) * shape.dilation;
    for (const std::int64_t span : {window, window + 5}) {
      for (const bool adds : {false, true}) {
        const std::int64_t rows = 31;
        const auto in = numbers.floats(rows * shape.channels);
        const auto w = numbers.floats(shape.channels * shape.kernel);
        const Run whole = run(shape, span, in, w, {rows}, adds);
        std::vector<std::int64_t> singles;
        for (std::int64_t cut = 0; cut <= rows; ++cut) {
          const Run split = run(shape, span, in, w, {cut, rows}, adds);
          EXPECT_EQ(split.out, whole.out) << cut;
          EXPECT_EQ(split.ring, whole.ring) << cut;
          if (cut > 0) singles.push_back(cut);
        }
        const Run one_by_one = run(shape, span, in, w, singles, adds);
        EXPECT_EQ(one_by_one.out, whole.out);
        EXPECT_EQ(one_by_one.ring, whole.ring);
      }
    }
  }
}

// Draft rows taken back: the next call starts at an earlier base, and what they wrote is written over.
TEST_P(Conv, RowsTakenBackLeaveNoTrace) {
  Numbers numbers(8);
  const Backend::ConvShape shape{24, 4, 3};
  const std::int64_t span = 9 + 4;
  const auto in = numbers.floats(30 * 24);
  const auto w = upload(numbers.floats(24 * 4));
  const auto device_in = upload(in);
  const auto draft = upload(numbers.floats(4 * 24));
  for (std::int64_t kept = 1; kept < 26; ++kept) {
    const Ring clean{memory<float>(span * 24), span};
    const Ring used{memory<float>(span * 24), span};
    const auto expected = memory<float>(2 * 24);
    const auto found = memory<float>(2 * 24);
    const auto scratch = memory<float>(30 * 24);
    for (const Ring& ring : {clean, used})
      backend().causal_conv(shape, device_in, w, ring, 0, kept, {}, scratch);
    backend().causal_conv(shape, draft, w, used, kept, 4, {}, scratch);
    backend().causal_conv(shape, device_in + kept * 24, w, clean, kept, 2, {}, expected);
    backend().causal_conv(shape, device_in + kept * 24, w, used, kept, 2, {}, found);
    EXPECT_EQ(bits_of_values(download(found, 2 * 24)), bits_of_values(download(expected, 2 * 24))) << kept;
  }
}

SLUICE_ON_EVERY_BACKEND(Conv);

}  // namespace
}  // namespace sluice::backend
