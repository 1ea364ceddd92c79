#include "backend/cpu/machine_meter.h"

#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/machine_meter.cpp"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {

/// Something that depends on all of `count` words, a multiple of 64.
std::uint32_t read_all(const std::uint32_t* from, std::int64_t count) {
  const DU d;
  VU sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (std::int64_t i = 0; i < count; i += 4 * kLanes) {
    unrolled<4>([&](auto k)
                    SLUICE_LAMBDA { sums[k] = hn::Add(sums[k], hn::LoadU(d, from + i + k * kLanes)); });
  }
  const VU all = hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]));
  // Highway's sum of lanes is one of signed integers on AVX-512, which must not overflow.
  alignas(64) std::uint32_t lanes[kLanes];
  hn::Store(all, d, lanes);
  std::uint32_t total = 0;
  for (const std::uint32_t lane : lanes) total += lane;
  return total;
}

/// `rounds` times kChains vectors of multiply-adds; how many that are is written to `count`.
float multiply_all(std::int64_t rounds, float factor, std::int64_t& count) {
  constexpr int kChains = 12;
  VF sums[kChains];
  unrolled<kChains>([&](auto k) SLUICE_LAMBDA { sums[k] = set(static_cast<float>(k)); });
  const VF by = set(factor);
  for (std::int64_t i = 0; i < rounds; ++i) {
    unrolled<kChains>([&](auto k) SLUICE_LAMBDA { sums[k] = hn::MulAdd(sums[k], by, by); });
  }
  count = rounds * kChains * kLanes;
  VF all = zero();
  unrolled<kChains>([&](auto k) SLUICE_LAMBDA { all = hn::Add(all, sums[k]); });
  return sum(all);
}

}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::backend::cpu {

HWY_EXPORT(read_all);
HWY_EXPORT(multiply_all);

namespace {

constexpr std::size_t kBytes = std::size_t{1} << 29;
constexpr std::int64_t kRounds = 2'000'000;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

Result<MachineMeter> MachineMeter::create(int threads) {
  SLUICE_ASSIGN(AlignedBuffer memory, AlignedBuffer::create(kBytes));
  // Pages that were never written to would all be the same one.
  std::memset(memory.data(), 1, memory.size());
  try {
    return MachineMeter(std::move(memory), threads > 0 ? threads : ThreadTeam::default_size());
  } catch (const std::system_error& e) {
    return make_error(ErrorCode::kOutOfMemory, "{} threads: the system refuses to start them: {}", threads,
                      e.what());
  }
}

MachineMeter::MachineMeter(AlignedBuffer memory, int threads)
    : memory_(std::move(memory)), team_(std::make_unique<ThreadTeam>(threads)) {}

double MachineMeter::read_rate() {
  constexpr std::size_t kUnit = 4096;  // bytes
  std::vector<std::uint32_t> kept(static_cast<std::size_t>(threads()) * 16);
  const auto* words = reinterpret_cast<const std::uint32_t*>(memory_.data());
  const auto begin = std::chrono::steady_clock::now();
  team_->parallel_for(kBytes / kUnit, 1, [&](int thread, std::size_t first, std::size_t last) {
    kept[static_cast<std::size_t>(thread) * 16] = HWY_DYNAMIC_DISPATCH(read_all)(
        words + first * kUnit / 4, static_cast<std::int64_t>((last - first) * kUnit / 4));
  });
  const double seconds = seconds_since(begin);
  volatile std::uint32_t used = 0;
  for (const std::uint32_t k : kept) used = used + k;
  return static_cast<double>(kBytes) / seconds;
}

double MachineMeter::multiply_rate() {
  const auto teams = static_cast<std::size_t>(threads());
  std::vector<std::int64_t> counts(teams * 8);
  std::vector<float> kept(teams * 16);
  const auto begin = std::chrono::steady_clock::now();
  team_->parallel_for(teams, 1, [&](int thread, std::size_t, std::size_t) {
    const auto i = static_cast<std::size_t>(thread);
    kept[i * 16] = HWY_DYNAMIC_DISPATCH(multiply_all)(kRounds, 0.5F, counts[i * 8]);
  });
  const double seconds = seconds_since(begin);
  volatile float used = 0;
  for (const float k : kept) used = used + k;
  double all = 0;
  for (const std::int64_t c : counts) all += static_cast<double>(c);
  return all / seconds;
}

}  // namespace sluice::backend::cpu
#endif  // HWY_ONCE
