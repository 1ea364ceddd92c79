// Norms, gates, activations and the wide residual of the CPU backend.
#include <cmath>
#include <limits>

#include "backend/cpu/row_kernels.h"
#include "backend/cpu_on_target.h"

namespace sluice::backend {
namespace {

constexpr double kTight = 3e-7;

class CpuRows : public OnTarget {};
SLUICE_ON_EVERY_TARGET(CpuRows);

double exact(cpu::Function function, double x) {
  switch (function) {
    case cpu::Function::kExp:
      return std::exp(x);
    case cpu::Function::kSigmoid:
      return 1 / (1 + std::exp(-x));
    case cpu::Function::kSilu:
      return x / (1 + std::exp(-x));
    case cpu::Function::kSoftplus:
      return std::log1p(std::exp(x));
  }
  return 0;
}

TEST_P(CpuRows, FunctionsAreGoodToThreeInTenMillion) {
  for (const auto function :
       {cpu::Function::kExp, cpu::Function::kSigmoid, cpu::Function::kSilu, cpu::Function::kSoftplus}) {
    std::vector<float> x;
    for (int i = -20000; i <= 20000; ++i) x.push_back(static_cast<float>(i) * 0x1.13p-8F);  // -84 .. 84
    for (int i = -2000; i <= 2000; ++i) x.push_back(static_cast<float>(i) * 1e-6F);
    std::vector<float> y(x.size());
    cpu::apply_function(function, x.data(), static_cast<std::int64_t>(x.size()), y.data());
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double want = exact(function, x[i]);
      if (want == 0) {
        EXPECT_EQ(y[i], 0);
      } else {
        worst = std::max(worst, std::abs(y[i] / want - 1));
      }
    }
    EXPECT_LE(worst, kTight) << "function " << static_cast<int>(function);
  }
}

TEST_P(CpuRows, FunctionsAtTheEndsOfTheRange) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> x{-kInf, -1000, -104.5F, -100, 88, 89, 1000, kInf, NAN};
  std::vector<float> y(x.size());
  const auto run = [&](cpu::Function function) {
    cpu::apply_function(function, x.data(), static_cast<std::int64_t>(x.size()), y.data());
    EXPECT_TRUE(std::isnan(y[8]));
  };
  run(cpu::Function::kExp);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[2], 0);
  EXPECT_NEAR(y[3], std::exp(-100.0), 2e-45);
  EXPECT_NEAR(y[4] / std::exp(88.0), 1, kTight);
  EXPECT_EQ(y[5], kInf);
  EXPECT_EQ(y[7], kInf);
  run(cpu::Function::kSigmoid);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 0);
  EXPECT_EQ(y[6], 1);
  EXPECT_EQ(y[7], 1);
  run(cpu::Function::kSoftplus);
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[6], 1000);
  EXPECT_EQ(y[7], kInf);
}

TEST_P(CpuRows, TheWideResidual) {
  Numbers numbers(1);
  for (const std::int64_t n : {2560, 7, 100}) {
    for (const std::int64_t rows : {1, 5}) {
      const WideShape shape{rows, 4, n};
      const std::int64_t wide = rows * 4 * n;
      const auto x = numbers.floats(wide, -3, 3);
      const auto w = numbers.floats(4 * n);
      const auto out = numbers.floats(rows * n);
      const auto gate = numbers.floats(rows * 4, -4, 4);
      check(wide, kTight, [&](Backend& b, std::vector<float>& y) {
        b.group_norm(shape, dev(x), dev(w), 1, 1e-6F, dev(y));
      });
      check(wide, kTight, [&](Backend& b, std::vector<float>& y) {
        y = x;
        b.inject(shape, dev(out), dev(gate), dev(y));
      });
      for (const bool injects : {false, true}) {
        check(2 * wide, kTight, [&](Backend& b, std::vector<float>& y) {
          std::copy(x.begin(), x.end(), y.begin());
          b.norm_prepare(shape, injects ? dev(out) : Dev<const float>(),
                         injects ? dev(gate) : Dev<const float>(), dev(y), dev(w), 1e-6F, dev(y) + wide,
                         nullptr);
        });
      }
      check(rows * n, kTight,
            [&](Backend& b, std::vector<float>& y) { b.hc_mix(shape, dev(x), dev(x), dev(y)); });
      check(wide, 0, [&](Backend& b, std::vector<float>& y) { b.replicate(shape, dev(out), dev(y)); });
      const auto key = numbers.floats(wide);
      check(wide, 1e-6, [&](Backend& b, std::vector<float>& y) {
        b.ple_gate(shape, dev(key), dev(x), dev(out), dev(y));
      });
    }
  }
}

TEST_P(CpuRows, HalfStreamsComeFromTheNormalisedValues) {
  Numbers numbers(2);
  const WideShape shape{1, 2, 96};
  const auto w = numbers.floats(192);
  auto wide = numbers.floats(192);
  std::vector<std::uint16_t> even(96), odd(96);
  std::vector<float> y(192), sums(6);
  const Backend::HalfStreams halves{dev(even), dev(odd), dev(sums)};
  one_.norm_prepare(shape, {}, {}, dev(wide), dev(w), 1e-6F, dev(y), &halves);
  for (std::size_t i = 0; i < 96; ++i) {
    EXPECT_EQ(even[i], to_half(y[2 * i]).bits);
    EXPECT_EQ(odd[i], to_half(y[2 * i + 1]).bits);
  }
  for (std::size_t i = 0; i < 6; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < 32; ++j) sum += y[32 * i + j];
    EXPECT_NEAR(sums[i], sum, 1e-5);
  }
}

TEST_P(CpuRows, ActivationsAndSums) {
  Numbers numbers(3);
  for (const std::int64_t n : {2560, 640, 1, 19}) {
    for (const std::int64_t rows : {1, 40}) {
      const auto x = numbers.floats(rows * n, -8, 8);
      const auto up = numbers.floats(rows * n);
      check(rows * n, kTight,
            [&](Backend& b, std::vector<float>& y) { b.silu_multiply(dev(x), dev(up), rows * n, dev(y)); });
      check(rows * n, kTight, [&](Backend& b, std::vector<float>& y) {
        y = x;
        b.silu_rows(dev(y), rows * n, 4);
      });
      std::vector<std::uint16_t> gate;
      for (const float g : numbers.floats(n, -0.1F, 0.1F)) gate.push_back(to_bfloat16(g).bits);
      check(rows * n, 1e-6, [&](Backend& b, std::vector<float>& y) {
        y = up;
        b.shared_add_rows(dev(x), dev(up), dev(std::as_const(gate)), rows, n, dev(y));
      });
      const std::int64_t slots = 10;
      auto experts = numbers.floats(rows * slots * n);
      auto weight = numbers.floats(rows * slots, 0, 1);
      weight[1] = 0;
      for (std::int64_t i = n; i < 2 * n; ++i) experts[static_cast<std::size_t>(i)] = NAN;
      check(rows * n, kTight, [&](Backend& b, std::vector<float>& y) {
        b.combine_experts(dev(std::as_const(experts)), dev(std::as_const(weight)), rows, slots, n, dev(y));
      });
      std::vector<std::uint32_t> index;
      for (std::int64_t r = 0; r < rows; ++r) index.push_back(static_cast<std::uint32_t>(r / 2));
      check(rows * n, kTight, [&](Backend& b, std::vector<float>& y) {
        y = up;
        b.scatter_add_rows(dev(x), dev(std::as_const(index)), dev(std::as_const(weight)), rows, n, dev(y));
      });
    }
  }
}

TEST_P(CpuRows, ConvolutionInAnyChunks) {
  Numbers numbers(4);
  struct Case {
    Backend::ConvShape shape;
    std::int64_t span;
  };
  for (const auto& [shape, span] :
       {Case{{10240, 4, 1}, 16}, Case{{1000, 4, 3}, 17}, Case{{37, 3, 2}, 12}, Case{{20, 20, 1}, 32}}) {
    const std::int64_t rows = 23;
    const auto in = numbers.floats(rows * shape.channels);
    const auto w = numbers.floats(shape.channels * shape.kernel);
    const auto add = numbers.floats(rows * shape.channels);
    const std::int64_t ring_size = span * shape.channels;
    // The output, then the ring as it is left.
    const auto run = [&](Backend& b, std::vector<float>& out, std::vector<std::int64_t> chunks) {
      std::int64_t base = 0;
      for (const std::int64_t chunk : chunks) {
        const std::int64_t at = base * shape.channels;
        b.causal_conv(shape, dev(in) + at, dev(w), {dev(out) + rows * shape.channels, span}, base, chunk,
                      dev(add) + at, dev(out) + at);
        base += chunk;
      }
    };
    const auto whole = check(rows * shape.channels + ring_size, kTight,
                             [&](Backend& b, std::vector<float>& out) { run(b, out, {23}); });
    std::vector<float> pieces(whole.size());
    run(two_, pieces, {1, 2, 1, 8, 11});
    EXPECT_EQ(bits_of_values(pieces), bits_of_values(whole));
  }
}

TEST_P(CpuRows, HeadsAreNormedRotatedAndGated) {
  Numbers numbers(5);
  struct Case {
    std::int64_t heads, dim, rotated;
  };
  for (const auto& [heads, dim, rotated] : {Case{24, 256, 64}, Case{4, 128, 64}, Case{3, 18, 6}}) {
    for (const std::int64_t rows : {1, 6}) {
      const Backend::HeadsIn in{heads, dim, heads * 2 * dim, 2 * dim};
      const auto qg = numbers.floats(rows * in.row_stride, -2, 2);
      const auto w = numbers.floats(dim);
      const auto cos = numbers.floats(rows * rotated / 2);
      const auto sin = numbers.floats(rows * rotated / 2);
      const Rope rope{rotated, dev(cos), dev(sin)};
      const std::int64_t count = rows * heads * dim;
      check(count, kTight, [&, h = heads](Backend& b, std::vector<float>& out) {
        EXPECT_EQ(in.heads, h);
        b.norm_rope(in, dev(qg), dev(w), 1e-6F, rope, rows, dev(out));
      });
      const auto start = numbers.floats(count);
      check(count, kTight, [&](Backend& b, std::vector<float>& out) {
        out = start;
        b.attention_gate(in, dev(qg), rows, dev(out));
      });
      for (const GateKind gate : {GateKind::kSigmoid, GateKind::kSilu}) {
        check(count, kTight, [&, d = dim, n = heads](Backend& b, std::vector<float>& out) {
          b.delta_gate_norm(dev(start), dev(qg), dev(w), 1e-6F, gate, rows, n, d, dev(out));
        });
      }
    }
  }
}

}  // namespace
}  // namespace sluice::backend
