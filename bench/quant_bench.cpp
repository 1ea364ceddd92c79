// The quantiser on one core. Counter: weights (or codes) a second.
//   quant_bench [--benchmark_filter=fit]
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "quant/codes.h"
#include "quant/fit.h"
#include "quant/matrix.h"

namespace sluice::quant {
namespace {

using spec::Format;

constexpr std::size_t kIn = 2048;
constexpr std::int64_t kRows = 256;

void count(benchmark::State& state, std::size_t each) {
  state.counters["weights"] = benchmark::Counter(
      static_cast<double>(each) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

std::vector<float> normal_values(std::size_t n) {
  std::mt19937 engine(7);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<float> out(n);
  for (float& v : out) v = normal(engine);
  return out;
}

void fit(benchmark::State& state, Format format, int group, bool weighted) {
  const auto values = normal_values(kIn * 16);
  std::vector<float> importance(weighted ? values.size() : 0);
  for (std::size_t i = 0; i < importance.size(); ++i) importance[i] = values[i] * values[i];
  std::vector<std::uint8_t> codes(values.size());
  std::vector<std::uint16_t> scales(values.size() / static_cast<std::size_t>(group)), biases(scales.size());
  for (auto _ : state) {
    benchmark::DoNotOptimize(fit_row(format, group, values, importance, codes, scales, biases));
  }
  count(state, values.size());
}

std::vector<std::uint8_t> some_codes() {
  std::mt19937 engine(7);
  std::vector<std::uint8_t> codes(1U << 20U);
  for (auto& code : codes) code = static_cast<std::uint8_t>(engine());
  return codes;
}

void pack(benchmark::State& state, Format format) {
  const auto codes = some_codes();
  std::vector<std::byte> out(packed_bytes(format, codes.size()));
  for (auto _ : state) {
    pack_codes(format, codes, out);
    benchmark::ClobberMemory();
  }
  count(state, codes.size());
}

void unpack(benchmark::State& state, Format format) {
  auto codes = some_codes();
  const std::vector<std::byte> packed(packed_bytes(format, codes.size()), std::byte{0x5a});
  for (auto _ : state) {
    unpack_codes(format, packed, codes);
    benchmark::ClobberMemory();
  }
  count(state, codes.size());
}

void truncate(benchmark::State& state, Format low) {
  const std::vector<std::byte> q4(packed_bytes(Format::kQ4, 1U << 20U), std::byte{0x5a});
  std::vector<std::byte> out(packed_bytes(low, 1U << 20U));
  for (auto _ : state) {
    truncate_codes(low, q4, out);
    benchmark::ClobberMemory();
  }
  count(state, 1U << 20U);
}

void dequantise(benchmark::State& state, Format format) {
  const MatrixShape shape{format, kRows, kIn, 64};
  const std::vector<std::byte> data(static_cast<std::size_t>(shape.data_bytes()), std::byte{0x3c}),
      scales(static_cast<std::size_t>(shape.scale_bytes()), std::byte{0x3c});
  std::vector<float> out(kIn * kRows);
  for (auto _ : state) {
    if (!dequantise_rows(shape, {data, scales, scales}, 0, out)) state.SkipWithError("refused");
    benchmark::ClobberMemory();
  }
  count(state, out.size());
}

void add_all() {
  for (const Format format : {Format::kQ8, Format::kQ4, Format::kQ3, Format::kQ2}) {
    const std::string bits = std::to_string(spec::bits_of(format));
    for (const int group : {32, 64, 128}) {
      const std::string name = "fit/q" + bits + "/group" + std::to_string(group);
      benchmark::RegisterBenchmark(name.c_str(), fit, format, group, false);
      if (group == 64) benchmark::RegisterBenchmark((name + "/weighted").c_str(), fit, format, group, true);
    }
    benchmark::RegisterBenchmark(("pack/q" + bits).c_str(), pack, format);
    benchmark::RegisterBenchmark(("unpack/q" + bits).c_str(), unpack, format);
    benchmark::RegisterBenchmark(("dequantise/q" + bits).c_str(), dequantise, format);
    if (spec::bits_of(format) < 4) {
      benchmark::RegisterBenchmark(("truncate/q" + bits).c_str(), truncate, format);
    }
  }
}

}  // namespace
}  // namespace sluice::quant

int main(int argc, char** argv) {
  sluice::quant::add_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
