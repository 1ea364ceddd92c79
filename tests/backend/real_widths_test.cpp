// Operations that work on whole rows, heads and states, against the reference at the released model's widths
// and at odd ones.
#include <algorithm>
#include <functional>
#include <limits>

#include "backend/on_backend.h"

namespace sluice::backend {
namespace {

constexpr double kTight = 1e-6;

class RealWidths : public OnBackend {
 protected:
  using Put = std::function<Dev<const float>(const std::vector<float>&)>;
  /// An operation on a backend; `put` gives it inputs, and the last argument holds `start` and is what
  /// counts.
  using Operation = std::function<void(Backend&, const Put&, Dev<float>)>;

  void SetUp() override {
    OnBackend::SetUp();
    auto made = create_backend("scalar", {1});
    ASSERT_TRUE(made.ok()) << made.error().message;
    reference_ = std::move(made).value();
  }

  std::vector<float> run(const std::vector<float>& start, const Operation& operation) {
    const auto out = upload(start);
    operation(
        backend(), [this](const std::vector<float>& values) { return Dev<const float>(upload(values)); },
        out);
    return download(out, static_cast<std::int64_t>(start.size()));
  }

  std::vector<float> check(const std::vector<float>& start, double tolerance, const Operation& operation) {
    std::vector<float> expected = start;
    // The reference's addresses are those of the host.
    operation(
        *reference_, [](const std::vector<float>& values) { return Dev<const float>(values.data()); },
        Dev<float>(expected.data()));
    const auto found = run(start, operation);
    EXPECT_LE(relative_l2(found, expected), tolerance);
    return found;
  }

  static std::vector<float> zeros(std::int64_t count) {
    return std::vector<float>(static_cast<std::size_t>(count));
  }

  std::unique_ptr<Backend> reference_;
};

TEST_P(RealWidths, TheWideResidual) {
  Numbers numbers(1);
  for (const std::int64_t n : {2560, 100, 7}) {
    for (const std::int64_t rows : {1, 3}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << n);
      const WideShape shape{rows, 4, n};
      const std::int64_t wide = rows * 4 * n;
      const auto x = numbers.floats(wide, -3, 3);
      const auto w = numbers.floats(4 * n);
      const auto out = numbers.floats(rows * n);
      const auto gate = numbers.floats(rows * 4, -4, 4);
      const auto key = numbers.floats(wide);
      check(zeros(wide), kTight, [&](Backend& b, const Put& put, Dev<float> y) {
        b.group_norm(shape, put(x), put(w), 1, 1e-6F, y);
      });
      check(x, kTight,
            [&](Backend& b, const Put& put, Dev<float> y) { b.inject(shape, put(out), put(gate), y); });
      auto both = x;  // the residual, then what is read of it
      both.resize(2 * x.size());
      check(both, kTight, [&](Backend& b, const Put& put, Dev<float> y) {
        b.norm_prepare(shape, {}, {}, y, put(w), 1e-6F, y + wide, nullptr);
      });
      check(both, kTight, [&](Backend& b, const Put& put, Dev<float> y) {
        b.norm_prepare(shape, put(out), put(gate), y, put(w), 1e-6F, y + wide, nullptr);
      });
      check(zeros(rows * n), kTight,
            [&](Backend& b, const Put& put, Dev<float> y) { b.hc_mix(shape, put(x), put(key), y); });
      check(zeros(wide), 0,
            [&](Backend& b, const Put& put, Dev<float> y) { b.replicate(shape, put(out), y); });
      check(zeros(wide), 0,
            [&](Backend& b, const Put& put, Dev<float> y) { b.mtp_fold(shape, put(out), put(x), y); });
      check(zeros(wide), kTight, [&](Backend& b, const Put& put, Dev<float> y) {
        b.ple_gate(shape, put(key), put(x), put(out), y);
      });
      check(key, kTight,
            [&](Backend& b, const Put& put, Dev<float> y) { b.ple_gate(shape, y, put(x), put(out), y); });
    }
  }
}

TEST_P(RealWidths, ANormOverAllStreamsAtOnce) {
  Numbers numbers(2);
  const auto x = numbers.floats(2 * 10240, -3, 3);
  const auto w = numbers.floats(10240);
  check(zeros(2 * 10240), kTight, [&](Backend& b, const Put& put, Dev<float> y) {
    b.group_norm({2, 1, 10240}, put(x), put(w), 0, 1e-6F, y);
  });
}

TEST_P(RealWidths, HalfStreamsComeFromTheNormalisedValues) {
  Numbers numbers(3);
  for (const std::int64_t n : {2560, 88}) {  // streams of 88 elements share sums
    const std::int64_t count = 2 * 4 * n;
    const auto wide = upload(numbers.floats(count));
    const auto y = memory<float>(count);
    const Backend::HalfStreams halves{memory<std::uint16_t>(count / 2), memory<std::uint16_t>(count / 2),
                                      memory<float>(count / 32)};
    backend().norm_prepare({2, 4, n}, {}, {}, wide, upload(numbers.floats(4 * n)), 1e-6F, y, &halves);
    const auto values = download(y, count);
    const auto even = download(halves.even, count / 2);
    const auto odd = download(halves.odd, count / 2);
    const auto sums = download(halves.sums, count / 32);
    for (std::size_t i = 0; i < even.size(); ++i) {
      EXPECT_EQ(even[i], to_half(values[2 * i]).bits);
      EXPECT_EQ(odd[i], to_half(values[2 * i + 1]).bits);
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      double sum = 0;
      for (std::size_t j = 0; j < 32; ++j) sum += values[32 * i + j];
      EXPECT_NEAR(sums[i], sum, 1e-5);
    }
  }
}

// A row's bits depend neither on the rows beside it nor on where it lies in memory.
TEST_P(RealWidths, ARowsBitsAreItsOwn) {
  Numbers numbers(4);
  for (const std::int64_t n : {2560, 132, 30}) {
    const std::int64_t row = 4 * n;
    const auto x = numbers.floats(3 * row);
    const auto w = upload(numbers.floats(row));
    const auto y = memory<float>(3 * row);
    backend().group_norm({3, 4, n}, upload(x), w, 0, 1e-6F, y);
    const auto together = bits_of_values(download(y, 3 * row));
    const auto gated = memory<float>(3 * row);
    backend().delta_gate_norm(upload(x), upload(x), w, 1e-6F, GateKind::kSilu, 3, 4, n, gated);
    const auto gated_together = bits_of_values(download(gated, 3 * row));
    const auto shifted = memory<float>(row + 1) + 1;
    for (std::int64_t r = 0; r < 3; ++r) {
      write(shifted, std::vector<float>(x.begin() + r * row, x.begin() + (r + 1) * row));
      backend().group_norm({1, 4, n}, shifted, w, 0, 1e-6F, y);
      EXPECT_TRUE(std::ranges::equal(
          bits_of_values(download(y, row)),
          std::span(together).subspan(static_cast<std::size_t>(r * row), static_cast<std::size_t>(row))));
      backend().delta_gate_norm(shifted, shifted, w, 1e-6F, GateKind::kSilu, 1, 4, n, gated);
      EXPECT_TRUE(
          std::ranges::equal(bits_of_values(download(gated, row)),
                             std::span(gated_together)
                                 .subspan(static_cast<std::size_t>(r * row), static_cast<std::size_t>(row))));
    }
  }
}

TEST_P(RealWidths, ConvolutionInAnyChunks) {
  Numbers numbers(5);
  struct Case {
    Backend::ConvShape shape;
    std::int64_t span;
  };
  for (const auto& [shape, span] :
       {Case{{10240, 4, 1}, 11}, Case{{1000, 4, 3}, 17}, Case{{37, 3, 2}, 12}, Case{{20, 20, 1}, 32}}) {
    const std::int64_t rows = 43;
    const std::int64_t c = shape.channels;
    const auto in = numbers.floats(rows * c);
    const auto w = numbers.floats(c * shape.kernel);
    const auto add = numbers.floats(rows * c);
    // The output, then the ring as it is left.
    const auto in_chunks = [&, &shape = shape, &span = span](std::vector<std::int64_t> chunks) {
      return [&, chunks](Backend& b, const Put& put, Dev<float> out) {
        const auto device_in = put(in);
        const auto device_w = put(w);
        const auto device_add = put(add);
        std::int64_t base = 0;
        for (const std::int64_t chunk : chunks) {
          b.causal_conv(shape, device_in + base * c, device_w, {out + rows * c, span}, base, chunk,
                        device_add + base * c, out + base * c);
          base += chunk;
        }
      };
    };
    const auto start = zeros((rows + span) * c);
    const auto whole = check(start, kTight, in_chunks({43}));
    EXPECT_EQ(bits_of_values(run(start, in_chunks({1, 2, 1, 8, 19, 12}))), bits_of_values(whole));
  }
}

TEST_P(RealWidths, DeltaGatesAndNorms) {
  Numbers numbers(6);
  const auto a = numbers.floats(3 * 48, -30, 30);
  const auto b = numbers.floats(3 * 48, -10, 10);
  const auto a_log = numbers.floats(48, -3, 2);
  const auto dt_bias = numbers.floats(48, -6, 1);
  check(zeros(2 * 3 * 48), kTight, [&](Backend& on, const Put& put, Dev<float> out) {
    on.delta_gates(put(a), put(b), put(a_log), put(dt_bias), 3, 48, out, out + 3 * 48);
  });
  for (const std::int64_t dim : {128, 18, 300}) {
    const auto y = numbers.floats(3 * 5 * dim);
    const auto z = numbers.floats(3 * 5 * dim, -6, 6);
    const auto w = numbers.floats(dim);
    for (const GateKind gate : {GateKind::kSigmoid, GateKind::kSilu}) {
      check(zeros(3 * 5 * dim), kTight, [&](Backend& on, const Put& put, Dev<float> out) {
        on.delta_gate_norm(put(y), put(z), put(w), 1e-6F, gate, 3, 5, dim, out);
      });
    }
  }
}

TEST_P(RealWidths, DeltaScanInAnyChunks) {
  Numbers numbers(7);
  struct Case {
    DeltaShape shape;
    std::int64_t rows;
  };
  for (const auto& [shape, rows] :
       {Case{{16, 48, 128, 128}, 2}, Case{{1, 3, 128, 128}, 37}, Case{{2, 6, 64, 64}, 20},
        Case{{1, 2, 5, 7}, 9}, Case{{1, 3, 99, 90}, 11}}) {
    const std::int64_t heads = shape.value_heads;
    const std::int64_t width = 2 * shape.key_heads * shape.key_dim + heads * shape.value_dim;
    const std::int64_t y_row = heads * shape.value_dim;
    const auto qkv = numbers.floats(rows * width);
    const auto decay = numbers.floats(rows * heads, 0.3F, 1);
    const auto beta = numbers.floats(rows * heads, 0, 1);
    const auto state = numbers.floats(heads * shape.key_dim * shape.value_dim, -0.5F, 0.5F);
    // y, then the state, which is written over.
    auto start = zeros(rows * y_row);
    start.insert(start.end(), state.begin(), state.end());
    const auto in_steps = [&, &shape = shape, &rows = rows](std::int64_t step) {
      return [&, step](Backend& b, const Put& put, Dev<float> out) {
        const auto device_qkv = put(qkv);
        const auto device_decay = put(decay);
        const auto device_beta = put(beta);
        const Dev<float> held = out + rows * y_row;
        for (std::int64_t at = 0; at < rows; at += step) {
          b.delta_scan(shape, device_qkv + at * width, device_decay + at * heads, device_beta + at * heads,
                       std::min(step, rows - at), held, held, out + at * y_row);
        }
      };
    };
    const auto whole = check(start, 2e-6, in_steps(rows));
    for (const std::int64_t step : {1, 3, 17}) {
      if (step >= rows) continue;
      EXPECT_EQ(bits_of_values(run(start, in_steps(step))), bits_of_values(whole)) << step;
    }
  }
}

TEST_P(RealWidths, RouterChoosesAsTheReference) {
  Numbers numbers(8);
  struct Case {
    std::int64_t n, k;
  };
  for (const auto& [n, k] : {Case{512, 10}, Case{600, 40}, Case{40, 3}, Case{3, 1}}) {
    auto logits = numbers.floats(4 * n, -5, 5);
    for (std::int64_t i = 0; i < n; ++i) {
      float& tied = logits[static_cast<std::size_t>(n + i)];
      tied = static_cast<float>(static_cast<int>(tied));
      float& odd = logits[static_cast<std::size_t>(2 * n + i)];
      odd = i % 3 == 0 ? NAN : i == 4 ? 1.0F : -std::numeric_limits<float>::infinity();
      logits[static_cast<std::size_t>(3 * n + i)] = NAN;
    }
    for (const bool renormalise : {true, false}) {
      std::vector<std::uint32_t> expected(static_cast<std::size_t>(4 * k));
      const auto index = memory<std::uint32_t>(4 * k);
      check(zeros(4 * k), kTight, [&, n = n, k = k](Backend& b, const Put& put, Dev<float> weight) {
        const bool tested = &b == &backend();
        b.router_topk(put(logits), 4, n, k, renormalise, tested ? index : Dev(expected.data()), weight);
      });
      EXPECT_EQ(download(index, 4 * k), expected) << n;
    }
  }
}

TEST_P(RealWidths, CombinedExpertsLeaveOutWhatHasNoWeight) {
  Numbers numbers(9);
  for (const std::int64_t n : {2560, 19}) {
    auto y = numbers.floats(3 * 10 * n);
    auto weight = numbers.floats(3 * 10, 0, 1);
    weight[1] = 0;
    std::fill(y.begin() + n, y.begin() + 2 * n, NAN);
    check(zeros(3 * n), kTight, [&](Backend& b, const Put& put, Dev<float> out) {
      b.combine_experts(put(y), put(weight), 3, 10, n, out);
    });
  }
}

TEST_P(RealWidths, HeadsAreNormedRotatedAndGated) {
  Numbers numbers(10);
  struct Case {
    std::int64_t heads, dim, rotated;
  };
  for (const auto& [heads, dim, rotated] :
       {Case{24, 256, 64}, Case{4, 128, 64}, Case{3, 18, 6}, Case{2, 32, 32}, Case{1, 300, 0}}) {
    for (const std::int64_t rows : {1, 5}) {
      // Queries and gates side by side, as the projection gives them.
      const Backend::HeadsIn in{heads, dim, heads * 2 * dim, 2 * dim};
      const auto qg = numbers.floats(rows * in.row_stride, -2, 2);
      const auto w = numbers.floats(dim);
      const auto cos = numbers.floats(rows * rotated / 2 + 1);
      const auto sin = numbers.floats(rows * rotated / 2 + 1);
      const std::int64_t count = rows * heads * dim;
      check(zeros(count), kTight, [&, rotated = rotated](Backend& b, const Put& put, Dev<float> out) {
        b.norm_rope(in, put(qg), put(w), 1e-6F, {rotated, put(cos), put(sin)}, rows, out);
      });
      check(numbers.floats(count), kTight, [&, dim = dim](Backend& b, const Put& put, Dev<float> out) {
        b.attention_gate(in, put(qg) + dim, rows, out);
      });
    }
  }
}

SLUICE_ON_EVERY_BACKEND(RealWidths);

}  // namespace
}  // namespace sluice::backend
