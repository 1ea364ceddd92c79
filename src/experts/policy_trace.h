// What a recorded run would have read from disk under other policies and pool sizes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "experts/policy.h"
#include "experts/route_trace.h"

namespace sluice::experts {

enum class Policy : std::uint8_t {
  kLru,      // what was touched last stays
  kClock,    // a ring with one bit a slot, cleared as the hand goes by
  kLfu,      // what was touched most often stays; counts are kept for ever
  kLfuAged,  // a record's count begins at that of the record that went last (LFU with dynamic ageing)
  kHeat,     // the engine's: heat.h, with its half life and the weight of a prefill's touch
  kOptimum,  // knows the future: what a decode step needs last goes first (Belady)
};
constexpr std::size_t kPolicies = 6;
std::string_view policy_name(Policy policy);

struct PolicyOptions {
  std::size_t slots = 0;  // 2 at least
  double half_life = kHalfLife;
  double prefill_weight = kPrefillWeight;
};

/// Wanted records of the decode steps and of the others.
struct PolicyCounts {
  std::uint64_t hits = 0, misses = 0;
  std::uint64_t prefill_hits = 0, prefill_misses = 0;

  [[nodiscard]] double hit_rate() const {
    return hits + misses == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(hits + misses);
  }
};

/// Goes through a trace from an empty pool. The union of a layer is held at once, as in the engine: what is
/// there is leased first, each missing record takes a slot that is not leased, and a union of more than half
/// of the slots goes through in several leases, of which two exist at a time.
///
/// The optimum is that of the decode steps' reads. A record whose next use is a prefill's goes first: it
/// costs decoding nothing.
PolicyCounts replay(const RouteTrace& trace, Policy policy, const PolicyOptions& options);

/// A trace like those of large models, for want of a recorded one: 48 layers of 512 experts, top 10. Experts
/// are chosen by a Zipf law; a part of a token's choices are those of the token before; each conversation
/// begins with a prefill, has favourites of its own, and leaves the layers' orders of popularity a little
/// changed. The same for a seed on every machine.
struct SyntheticOptions {
  std::int64_t layers = 48;
  std::int64_t experts = 512;
  std::int64_t top = 10;
  std::int64_t steps = 2000;        // of decoding
  std::int64_t conversation = 200;  // decode steps of each
  std::int64_t prompt = 256;        // rows of its prefill
  double exponent = 0.8;            // of the Zipf law
  double repeated = 0.25;           // share of the choices that are the token before's
  double favourites = 0.3;          // share of the choices that are a conversation's own
  double drift = 0.1;               // share of the experts that trade places between conversations
  std::uint64_t record_bytes = 2768896;
  std::uint64_t seed = 1;
};
RouteTrace synthetic_trace(const SyntheticOptions& options);

}  // namespace sluice::experts
