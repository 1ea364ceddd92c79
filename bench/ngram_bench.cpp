// The n-gram rows of a step, never the same ones: one after another, and in a batch by some threads.
//   sluice make-model flash-next DIR --layers 4 --experts 16 --ngram-base 3000000
//   sync; echo 3 > /proc/sys/vm/drop_caches
//   SLUICE_STORE=DIR ngram_bench
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "experts/ngram_rows.h"
#include "store/source.h"

namespace sluice {
namespace {

const store::WeightSource* opened_store() {
  static const std::unique_ptr<store::WeightSource> kSource = [] {
    const char* folder = std::getenv("SLUICE_STORE");
    auto opened = folder == nullptr ? Result<std::unique_ptr<store::WeightSource>>(Error{})
                                    : store::open_source(folder);
    return opened.ok() ? std::move(opened).value() : nullptr;
  }();
  return kSource != nullptr && kSource->config().ple ? kSource.get() : nullptr;
}

std::mt19937_64& random_rows() {
  static std::mt19937_64 random(1);
  return random;
}

void fill(std::span<std::int64_t> rows, const store::WeightSource& source, std::int64_t layer) {
  const auto count = static_cast<std::uint64_t>(source.ngram_layout(layer)->rows);
  for (auto& row : rows) row = static_cast<std::int64_t>(random_rows()() % count);
}

void one_by_one(benchmark::State& state) {
  const auto* source = opened_store();
  if (source == nullptr) return state.SkipWithError("SLUICE_STORE names no model with n-gram rows");
  const auto& ple = *source->config().ple;
  std::vector<std::int64_t> rows(static_cast<std::size_t>(state.range(0) * ple.heads()));
  std::vector<float> values(rows.size() * static_cast<std::size_t>(ple.head_dim()));
  for (auto _ : state) {
    for (const std::int64_t layer : ple.layers) {
      fill(rows, *source, layer);
      if (!source->read_ngram_rows(layer, rows, values).ok()) return state.SkipWithError("read");
    }
  }
}
BENCHMARK(one_by_one)->Arg(1)->Arg(256)->UseRealTime()->Unit(benchmark::kMicrosecond);

void batch(benchmark::State& state) {
  const auto* source = opened_store();
  if (source == nullptr) return state.SkipWithError("SLUICE_STORE names no model with n-gram rows");
  experts::NgramRows::Options options;
  options.rows = state.range(0);
  options.heads = source->config().ple->heads();
  options.threads = static_cast<std::size_t>(state.range(1));
  const auto rows = experts::NgramRows::create(*source, options);
  if (!rows.ok()) return state.SkipWithError(rows.error().message.c_str());
  for (auto _ : state) {
    const auto step = (*rows)->start(
        options.rows, options.rows > 8 ? experts::Use::kPrefill : experts::Use::kDecode,
        [&](std::int64_t layer, std::span<std::int64_t> wanted) { fill(wanted, *source, layer); });
    if (!step.ok()) return state.SkipWithError("start");
    for (const std::int64_t layer : source->config().ple->layers) {
      const auto taken = (*rows)->take(layer, [](std::int64_t, std::span<const float> values) {
        benchmark::DoNotOptimize(values.data());
      });
      if (!taken.ok()) return state.SkipWithError("take");
    }
  }
}
BENCHMARK(batch)
    ->ArgsProduct({{1, 256, 2048}, {1, 4, 8, 16, 32}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace sluice

BENCHMARK_MAIN();
