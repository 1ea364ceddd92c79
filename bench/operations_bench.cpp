// Single operations of the CPU backend at the widths of the released model. Weights rotate through more
// memory than caches hold, as they do in a decode step.
//   operations_bench --benchmark_filter=linear [--benchmark_min_time=0.5]
// Counters: bytes of weights or state a second, and floating-point operations a second (a multiply-add is
// two). SLUICE_BENCH_THREADS sets the number of threads (default: physical cores).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/cpu_backend.h"

namespace sluice::backend {
namespace {

/// Bytes: three times the cache of this class of machine, or SLUICE_BENCH_ROTATION MiB.
const std::int64_t kRotation = [] {
  const char* text = std::getenv("SLUICE_BENCH_ROTATION");
  return static_cast<std::int64_t>(text == nullptr ? 96 : std::max(std::atoi(text), 1)) << 20;
}();

int bench_threads() {
  const char* text = std::getenv("SLUICE_BENCH_THREADS");
  return text == nullptr ? 0 : std::atoi(text);
}

CpuBackend& cpu_backend() {
  static CpuBackend backend(bench_threads());
  return backend;
}

std::vector<float> random_floats(std::int64_t count, float low = -1, float high = 1) {
  std::mt19937 engine(7);
  std::uniform_real_distribution<float> values(low, high);
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& v : out) v = values(engine);
  return out;
}

std::vector<std::byte> random_bytes(std::int64_t count) {
  std::mt19937_64 engine(9);
  std::vector<std::byte> out(static_cast<std::size_t>((count + 7) / 8 * 8));
  for (std::size_t i = 0; i < out.size(); i += 8) {
    const std::uint64_t word = engine() & 0xbfffbfffbfffbfffU;  // finite also as bf16
    std::memcpy(out.data() + i, &word, 8);
  }
  return out;
}

template <class T>
Dev<const T> dev(const std::vector<T>& values) {
  return Dev<const T>(values.data());
}
template <class T>
Dev<T> dev(std::vector<T>& values) {
  return Dev<T>(values.data());
}

void count_rates(benchmark::State& state, double bytes, double operations) {
  const auto n = static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(bytes * n / 1e9, benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] = benchmark::Counter(operations * n / 1e9, benchmark::Counter::kIsRate);
}

/// Copies of one matrix, enough to fill the rotation.
class Matrices {
 public:
  Matrices(Format format, std::int64_t out, std::int64_t in, std::int64_t rotation) {
    Matrix m{format, out, in, 64, {}, {}, {}};
    bytes_ = m.row_bytes() * out;
    const std::int64_t scale_count = is_quantised(format) ? out * in / m.group : 0;
    const std::int64_t count = std::max<std::int64_t>(1, rotation / bytes_);
    data_ = random_bytes(bytes_ * count);
    // 0.01, and a bias that centres the codes.
    scales_.assign(static_cast<std::size_t>(scale_count * count), 0x3c24);
    biases_.assign(scales_.size(), 0xbda4);
    for (std::int64_t i = 0; i < count; ++i) {
      m.data = dev(std::as_const(data_)) + i * bytes_;
      m.scales = dev(std::as_const(scales_)) + i * scale_count;
      m.biases = dev(std::as_const(biases_)) + i * scale_count;
      all_.push_back(m);
    }
    bytes_ += 4 * scale_count;
  }
  const Matrix& next() { return all_[next_++ % all_.size()]; }
  [[nodiscard]] double bytes() const { return static_cast<double>(bytes_); }

 private:
  std::int64_t bytes_ = 0;
  std::vector<std::byte> data_;
  std::vector<std::uint16_t> scales_, biases_;
  std::vector<Matrix> all_;
  std::size_t next_ = 0;
};

void linear(benchmark::State& state, Format format, std::int64_t out, std::int64_t in,
            std::int64_t rotation) {
  const std::int64_t rows = state.range(0);
  Matrices matrices(format, out, in, rotation);
  const auto x = random_floats(rows * in);
  std::vector<float> y(static_cast<std::size_t>(rows * out));
  for (auto _ : state) cpu_backend().linear(matrices.next(), dev(x), rows, dev(y));
  count_rates(state, matrices.bytes(), 2.0 * static_cast<double>(rows * out * in));
}

void experts(benchmark::State& state, Format format) {
  const std::int64_t rows = state.range(0);
  const std::int64_t per_row = 10;
  const ExpertGeometry geometry{2560, 640, 64};
  const RecordLayout layout{geometry, format};
  const std::int64_t pool = std::max<std::int64_t>(per_row, 2 * kRotation / layout.bytes());  // records
  auto records = random_bytes(layout.bytes() * pool);
  for (std::int64_t i = 0; i < pool; ++i) {  // sane scales
    auto* scales =
        reinterpret_cast<std::uint16_t*>(records.data() + i * layout.bytes() + layout.scales_offset(0));
    for (std::int64_t s = 0; s < 3 * layout.scale_bytes(); ++s) scales[s] = s % 2 == 0 ? 0x3a24 : 0xba24;
  }
  // Up to eight rows choose different experts; more rows share those there are.
  const std::int64_t entries = std::min(rows * per_row, std::int64_t{40});
  const std::int64_t pairs = rows * per_row;
  std::vector<std::uint32_t> begin, pair_row, pair_slot;
  for (std::int64_t u = 0; u < entries; ++u) {
    begin.push_back(static_cast<std::uint32_t>(pair_row.size()));
    for (std::int64_t p = u; p < pairs; p += entries) {
      pair_row.push_back(static_cast<std::uint32_t>(p / per_row));
      pair_slot.push_back(static_cast<std::uint32_t>(p % per_row));
    }
  }
  begin.push_back(static_cast<std::uint32_t>(pair_row.size()));
  const auto x = random_floats(rows * geometry.hidden);
  std::vector<float> y(static_cast<std::size_t>(pairs * geometry.hidden));
  std::vector<ExpertEntry> table(static_cast<std::size_t>(entries));
  std::int64_t next = 0;
  for (auto _ : state) {
    for (auto& entry : table) {
      entry = ExpertEntry::make(records.data() + next++ % pool * layout.bytes(), format);
    }
    const ExpertBatch batch{geometry,
                            rows,
                            per_row,
                            dev(std::as_const(table)),
                            dev(std::as_const(begin)),
                            dev(std::as_const(pair_row)),
                            dev(std::as_const(pair_slot))};
    cpu_backend().experts(batch, 0, entries, pairs, dev(x), dev(y));
  }
  count_rates(state, static_cast<double>(entries * layout.bytes()),
              6.0 * static_cast<double>(pairs * geometry.hidden * geometry.inter));
}

void delta_scan(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const DeltaShape shape{16, 48, 128, 128};
  const std::int64_t states = 36;  // linear layers, 113 MB
  const std::int64_t size = 48 * 128 * 128;
  auto memory = random_floats(states * size, -0.1F, 0.1F);
  const auto qkv = random_floats(rows * 10240);
  const auto gates = random_floats(rows * 48, 0.5F, 0.9F);
  std::vector<float> y(static_cast<std::size_t>(rows * 48 * 128));
  std::int64_t next = 0;
  for (auto _ : state) {
    const Dev<float> s = dev(memory) + next++ % states * size;
    cpu_backend().delta_scan(shape, dev(qkv), dev(gates), dev(gates), rows, s, s, dev(y));
  }
  count_rates(state, 8.0 * static_cast<double>(size), 7.0 * static_cast<double>(rows * size));
}

void attention(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const std::int64_t tokens = state.range(1);
  const AttentionShape shape{24, 2, 256};
  const std::int64_t caches = std::max<std::int64_t>(1, kRotation / (tokens * 4096));
  const auto keys = random_floats(caches * tokens * 512);
  const auto values = random_floats(caches * tokens * 512);
  const auto q = random_floats(rows * 24 * 256);
  std::vector<float> out(q.size());
  const std::vector<std::uint32_t> count(static_cast<std::size_t>(rows), static_cast<std::uint32_t>(tokens));
  const std::vector<std::uint8_t> dense(static_cast<std::size_t>(rows), 1);
  const TokenSelection selection{{}, 0, dev(count), dev(dense)};
  std::int64_t next = 0;
  for (auto _ : state) {
    const std::int64_t at = next++ % caches * tokens * 512;
    cpu_backend().attention(shape, dev(q), dev(keys) + at, dev(values) + at, selection, rows, dev(out));
  }
  count_rates(state, static_cast<double>(tokens) * 4096, 4.0 * static_cast<double>(rows * 24 * tokens * 256));
}

void indexer(benchmark::State& state) {
  const std::int64_t blocks = state.range(0);
  const IndexShape shape{4, 128, 4, 512};
  const auto q = random_floats(4 * 128);
  const auto keys = random_floats(blocks * 128);
  std::vector<float> scores(static_cast<std::size_t>(blocks));
  const std::vector<std::uint32_t> count{static_cast<std::uint32_t>(blocks)};
  for (auto _ : state)
    cpu_backend().index_scores(shape, dev(q), dev(keys), dev(count), 1, blocks, dev(scores));
  count_rates(state, static_cast<double>(blocks * 512), static_cast<double>(blocks * 1024));
}

void index_select(benchmark::State& state) {
  const std::int64_t blocks = state.range(0);
  const IndexShape shape{4, 128, 4, 512};
  const auto scores = random_floats(blocks);
  const std::vector<std::uint32_t> visible{static_cast<std::uint32_t>(blocks * 4 + 3)};
  std::vector<std::uint32_t> tokens(2051), count(1);
  std::vector<std::uint8_t> dense(1);
  for (auto _ : state) {
    cpu_backend().index_select(shape, dev(scores), blocks, dev(visible), 1, dev(tokens), 2051, dev(count),
                               dev(dense), {}, 0);
  }
}

void hyper_read(benchmark::State& state) {
  const WideShape shape{state.range(0), 4, 2560};
  auto wide = random_floats(shape.rows * 10240);
  const auto out = random_floats(shape.rows * 2560);
  const auto gate = random_floats(shape.rows * 4, -0.1F, 0.1F);
  const auto w = random_floats(10240);
  std::vector<float> y(wide.size());
  for (auto _ : state) {
    cpu_backend().norm_prepare(shape, dev(out), dev(gate), dev(wide), dev(w), 1e-6F, dev(y), nullptr);
  }
}

void hyper_mix(benchmark::State& state) {
  const WideShape shape{state.range(0), 4, 2560};
  const auto u = random_floats(shape.rows * 10240);
  std::vector<float> mixed(static_cast<std::size_t>(shape.rows * 2560));
  for (auto _ : state) cpu_backend().hc_mix(shape, dev(u), dev(u), dev(mixed));
}

void convolution(benchmark::State& state) {
  const std::int64_t rows = state.range(0);
  const auto in = random_floats(rows * 10240);
  const auto w = random_floats(10240 * 4);
  auto ring = random_floats(10240 * 16);
  std::vector<float> out(in.size());
  std::int64_t base = 100;
  for (auto _ : state) {
    cpu_backend().causal_conv({10240, 4, 1}, dev(in), dev(w), {dev(ring), 16}, base, rows, {}, dev(out));
    base += rows;
  }
}

void router(benchmark::State& state) {
  const auto logits = random_floats(512, -4, 4);
  std::vector<std::uint32_t> index(10);
  std::vector<float> weight(10);
  for (auto _ : state) cpu_backend().router_topk(dev(logits), 1, 512, 10, true, dev(index), dev(weight));
}

void argmax(benchmark::State& state) {
  const auto logits = random_floats(248320);
  std::vector<std::int32_t> index(1);
  for (auto _ : state) cpu_backend().argmax_rows(dev(logits), 1, 248320, dev(index));
}

struct NamedFormat {
  const char* name;
  Format format;
};
constexpr NamedFormat kFormats[] = {{"q4", Format::kQ4}, {"bf16", Format::kBf16}, {"q8", Format::kQ8},
                                    {"q3", Format::kQ3}, {"q2", Format::kQ2},     {"f32", Format::kF32}};

void register_all() {
  for (const auto& [name, format] : kFormats) {
    const Format f = format;
    benchmark::RegisterBenchmark((std::string("linear/") + name).c_str(),
                                 [f](benchmark::State& state) { linear(state, f, 10240, 2560, kRotation); })
        ->Arg(1)
        ->Arg(2)
        ->Arg(4)
        ->Arg(5)
        ->Arg(8)
        ->Arg(60)
        ->UseRealTime();
    benchmark::RegisterBenchmark((std::string("linear_cached/") + name).c_str(),
                                 [f](benchmark::State& state) { linear(state, f, 64, 2560, 0); })
        ->Arg(1)
        ->Arg(2)
        ->Arg(4)
        ->Arg(8)
        ->UseRealTime();
  }
  for (const auto& [name, format] : {kFormats[0], kFormats[3], kFormats[4]}) {
    const Format f = format;
    benchmark::RegisterBenchmark((std::string("experts/") + name).c_str(),
                                 [f](benchmark::State& state) { experts(state, f); })
        ->Arg(1)
        ->Arg(2)
        ->Arg(4)
        ->Arg(64)
        ->Arg(240)
        ->UseRealTime();
  }
  benchmark::RegisterBenchmark("delta_scan", delta_scan)->Arg(1)->Arg(2)->Arg(4)->Arg(64)->UseRealTime();
  benchmark::RegisterBenchmark("attention", attention)
      ->Args({1, 2048})
      ->Args({1, 32768})
      ->Args({4, 2048})
      ->Args({64, 2048})
      ->UseRealTime();
  benchmark::RegisterBenchmark("index_scores", indexer)->Arg(4096)->Arg(65536)->UseRealTime();
  benchmark::RegisterBenchmark("index_select", index_select)->Arg(4096)->Arg(65536)->UseRealTime();
  benchmark::RegisterBenchmark("norm_prepare", hyper_read)->Arg(1)->Arg(4)->UseRealTime();
  benchmark::RegisterBenchmark("hc_mix", hyper_mix)->Arg(1)->Arg(4)->UseRealTime();
  benchmark::RegisterBenchmark("causal_conv", convolution)->Arg(1)->Arg(64)->UseRealTime();
  benchmark::RegisterBenchmark("router_topk", router)->UseRealTime();
  benchmark::RegisterBenchmark("argmax_rows", argmax)->UseRealTime();
}

}  // namespace
}  // namespace sluice::backend

int main(int argc, char** argv) {
  sluice::backend::register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
