#include "engine/loading.h"

#include <cmath>

#include "base/machine.h"
#include "base/memory_pressure.h"
#include "engine/tier.h"

namespace sluice::engine {
namespace {

/// How much the pool should give back to the system, now.
std::function<std::uint64_t()> watch_memory(std::uint64_t pool_bytes) {
  const auto found = find_memory(0);
  if (!found.ok()) return {};
  return [pool_bytes, reserve = found->reserve]() -> std::uint64_t {
    const auto machine = read_machine();
    if (!machine.ok()) return 0;
    return bytes_to_give_back(machine->available(), reserve, pool_bytes, memory_stall());
  };
}

Result<void> choose_streaming(const store::SourceForm& source, const PlanOptions& planned, std::size_t tier,
                              const EngineOptions& options, const PoolChoice& pool,
                              model::StreamOptions& stream) {
  const Streaming& wish = options.streaming;
  if (!(wish.cut_weak >= 0 && wish.cut_weak < 1)) {
    return make_error(ErrorCode::kInvalidArgument, "cut-weak {}: needed 0 up to, not including, 1",
                      wish.cut_weak);
  }
  if (wish.miss_experts > 0) {
    PlanOptions low = planned;
    low.experts = wish.miss_experts;
    SLUICE_ASSIGN(stream.miss_tier, planned_tier(source, low));
    // Best first: what comes later has fewer bits.
    if (*stream.miss_tier <= tier) {
      return make_error(ErrorCode::kInvalidArgument,
                        "miss-experts {}: needed fewer bits than those of the other experts",
                        wish.miss_experts);
    }
  }
  stream.ring = wish.io_uring;
  stream.lookahead = wish.lookahead;
  stream.in_place = wish.in_place;
  stream.keep_heat = wish.keep_heat && source.packed_bytes().has_value();
  stream.cut_weak = static_cast<float>(wish.cut_weak);
  stream.least_slots = pool.least_slots;
  stream.pressure = watch_memory(pool.bytes);
  stream.on_notice = options.on_notice;
  return {};
}

}  // namespace

Result<model::ModelOptions> choose_loading(const store::SourceForm& source, PlanOptions planned,
                                           const EngineOptions& options, const backend::Backend& backend) {
  planned.backend = backend.name();
  planned.device_memory = backend.device_memory();
  planned.device_pool = options.device_pool;
  planned.kv_q8 = options.kv_q8;
  model::ModelOptions loading;
  loading.load_threads = options.threads;
  loading.mtp = planned.draft_head;
  loading.kv = options.kv_q8 ? model::KvFormat::kQ8 : model::KvFormat::kF32;
  SLUICE_TRY(check_kv(source.config(), loading.kv));
  SLUICE_ASSIGN(loading.tier, planned_tier(source, planned));
  SLUICE_ASSIGN(const PoolChoice pool, choose_pool(source, planned, options.pool));
  loading.pool_bytes = pool.bytes;
  loading.device_pool_bytes = pool.device_bytes;
  loading.max_rows = pool.max_rows;
  SLUICE_TRY(choose_streaming(source, planned, loading.tier, options, pool, loading.stream));
  return loading;
}

}  // namespace sluice::engine
