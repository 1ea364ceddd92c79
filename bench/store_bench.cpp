// Opening a packed store, and making random records.
//   sluice make-model flash-next DIR --sparse --ngram-base 20000 --dense 4
//   SLUICE_STORE=DIR store_bench --benchmark_repetitions=9
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "pack/random_source.h"
#include "spec/geometries.h"
#include "store/packed_store.h"

namespace sluice {
namespace {

void open(benchmark::State& state) {
  const char* folder = std::getenv("SLUICE_STORE");
  if (folder == nullptr) return state.SkipWithError("SLUICE_STORE names no packed store");
  for (auto _ : state) {
    auto store = store::PackedStore::open(folder);
    if (!store.ok()) return state.SkipWithError(store.error().message.c_str());
    state.counters["records"] = static_cast<double>(store.value()->manifest().records());
    benchmark::DoNotOptimize(store);
  }
}
BENCHMARK(open)->Unit(benchmark::kMillisecond);

void random_record(benchmark::State& state, spec::Format format) {
  pack::RandomModel model;
  model.config = spec::named_geometry("flash-next").value();
  model.experts = {format};
  const auto source = pack::RandomSource::create(model);
  if (!source.ok()) return state.SkipWithError(source.error().message.c_str());
  std::vector<std::byte> record(static_cast<std::size_t>(source.value()->record_layout().bytes()));
  std::int64_t expert = 0;
  for (auto _ : state) {
    if (!source.value()->read_record(0, 0, expert++ % 512, record).ok()) return state.SkipWithError("read");
    benchmark::DoNotOptimize(record.data());
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(record.size()));
}
BENCHMARK_CAPTURE(random_record, q4, spec::Format::kQ4);
BENCHMARK_CAPTURE(random_record, q3, spec::Format::kQ3);
BENCHMARK_CAPTURE(random_record, q2, spec::Format::kQ2);

}  // namespace
}  // namespace sluice

BENCHMARK_MAIN();
