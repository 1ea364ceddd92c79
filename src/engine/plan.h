// What memory a model needs before anything of it is loaded, and whether the machine has it (docs/memory.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "pack/options.h"
#include "spec/config.h"
#include "spec/formats.h"
#include "store/source.h"

namespace sluice::engine {

/// Rows of a prefill chunk where all experts are in memory. Where they come from disk each chunk reads most
/// of them, so that longer ones are worth their memory.
constexpr std::int64_t kChunk = 256;
constexpr std::int64_t kLongestChunk = 2048;

struct PlanOptions {
  std::int64_t context = 0;  // tokens of a session; 0: as the engine chooses
  std::int64_t sessions = 1;
  bool kv_q8 = false;        // sessions keep keys and values in 8 bits
  std::uint64_t memory = 0;  // bytes; 0: what the machine has
  std::uint64_t pool = 0;    // bytes for expert records; 0: what remains
  std::string backend = "cpu";
  /// Bytes that are free in the memory of a device; absent: there is none, or its memory is the host's.
  std::optional<std::uint64_t> device_memory;
  /// Bytes of a device for expert records; absent: all of them if they fit, else what its memory leaves.
  std::optional<std::uint64_t> device_pool;
  std::int64_t max_rows = 0;  // rows of a prefill chunk; 0: kChunk, more where experts come from disk
  bool draft_head = true;     // where there is one
  int experts = 0;            // bits of the experts to use: one of those that are stored; 0: the best
  /// What is planned is the store that pack would make with these; absent: the weights as they are there, or
  /// of a config alone what pack makes by default.
  std::optional<pack::PackOptions> packing;
};

/// Memory to plan with.
struct FoundMemory {
  std::uint64_t usable = 0;     // what the plan may take
  std::uint64_t available = 0;  // of the machine, now; 0: not asked
  std::uint64_t total = 0;
  std::uint64_t reserve = 0;  // left to everything else
  bool given = false;         // by the caller
};

/// `given` bytes, or, for 0, what the machine and its control groups have available less a reserve: a
/// sixteenth, between 256 MiB and 2 GiB, but never more than half. Fails with kIo where the system does not
/// tell.
Result<FoundMemory> find_memory(std::uint64_t given);

/// A part of what is needed whatever becomes of the experts.
struct PlanPart {
  std::string_view key;    // in JSON
  std::string_view title;  // for people
  std::uint64_t bytes = 0;
  bool device = false;  // in the memory of the device, where that has its own
};

/// Memory of a device that is not the host's.
struct DevicePlan {
  std::uint64_t available = 0;
  std::uint64_t reserve = 0;  // for what kernels and driver take beside the parts
  [[nodiscard]] std::uint64_t usable() const { return available - reserve; }
};

struct ExpertPlan {
  spec::RecordLayout layout;
  std::int64_t layers = 0;  // that own records; the draft head's is one
  std::int64_t records = 0;
  std::uint64_t slot_bytes = 0;      // a record, padded as in its file
  std::uint64_t file_bytes = 0;      // all records in their file
  std::uint64_t resident_bytes = 0;  // all records as the engine keeps them in memory
  std::int64_t token_records = 0;    // records one token reads at most
  std::int64_t least_slots = 0;      // the smallest pool
  std::int64_t slots = 0;            // the pool's
  std::uint64_t device_slot_bytes = 0;
  std::int64_t device_slots = 0;  // of the device pool
  bool device_asked = false;      // so many were asked for
  [[nodiscard]] std::uint64_t device_bytes() const {
    return device_slot_bytes * static_cast<std::uint64_t>(device_slots);
  }
  [[nodiscard]] std::uint64_t least_bytes() const {
    return slot_bytes * static_cast<std::uint64_t>(least_slots);
  }
  [[nodiscard]] std::uint64_t pool_bytes() const { return slot_bytes * static_cast<std::uint64_t>(slots); }
  [[nodiscard]] std::uint64_t token_bytes() const {
    return slot_bytes * static_cast<std::uint64_t>(token_records);
  }
  /// Share of the records that the pool holds.
  [[nodiscard]] double share() const { return static_cast<double>(slots) / static_cast<double>(records); }
};

/// All tables together.
struct NgramPlan {
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t token_rows = 0;  // rows read for a token
  std::uint64_t table_bytes = 0;
  std::uint64_t memory_bytes = 0;  // tables kept in memory, the cache of others, room for a step's rows
};

struct MemoryPlan {
  std::int64_t context = 0;
  std::int64_t max_rows = 0;  // of a prefill chunk
  std::int64_t sessions = 1;
  std::string backend;
  bool draft_head = false;
  std::uint64_t session_fixed = 0;  // of one session
  std::uint64_t session_token = 0;
  std::vector<PlanPart> parts;
  ExpertPlan experts;
  std::optional<NgramPlan> ngram;
  std::size_t tier = 0;           // place of the experts' precision among those that are stored
  std::uint64_t store_bytes = 0;  // of the packed store, there or to be made; 0: neither
  std::uint64_t file_bytes = 0;   // of the checkpoint's weight files; 0: none there
  FoundMemory memory;
  std::optional<DevicePlan> device;  // absent: all is in the host's memory

  // Of the host's memory: without experts, and with them in each of the two forms.
  [[nodiscard]] std::uint64_t fixed() const;
  [[nodiscard]] std::uint64_t resident_total() const {
    return fixed() + (device ? 0 : experts.resident_bytes);
  }
  [[nodiscard]] std::uint64_t pool_least() const { return pool_fixed() + experts.least_bytes(); }
  [[nodiscard]] std::uint64_t pool_total() const { return pool_fixed() + experts.pool_bytes(); }
  // The same of the device's own; 0 where there is none.
  [[nodiscard]] std::uint64_t device_fixed() const;
  [[nodiscard]] std::uint64_t device_resident_total() const {
    return device ? device_fixed() + experts.resident_bytes : 0;
  }
  [[nodiscard]] std::uint64_t device_pool_total() const {
    return device ? device_fixed() + experts.device_bytes() : 0;
  }
  /// Every expert is in the memory that computes; a device pool for fewer may be asked for.
  [[nodiscard]] bool fits_resident() const {
    return resident_total() <= memory.usable && (!device || device_resident_total() <= device->usable()) &&
           !(experts.device_asked && experts.device_slots < experts.records);
  }
  [[nodiscard]] bool fits_pool() const {
    return experts.slots >= experts.least_slots && pool_total() <= memory.usable && fits_device();
  }
  [[nodiscard]] bool fits_device() const { return !device || device_pool_total() <= device->usable(); }
  [[nodiscard]] bool fits() const { return fits_resident() || fits_pool(); }
  /// Bytes short of the smallest form that was asked for; 0 where it fits.
  [[nodiscard]] std::uint64_t missing() const;
  /// The largest part, the experts (`all` of them, or the smallest pool) among them.
  [[nodiscard]] PlanPart largest(bool all) const;

 private:
  [[nodiscard]] std::uint64_t pool_fixed() const { return fixed() + (device ? 0 : experts.device_bytes()); }
};

/// Tokens of context a session gets: `asked`, or for 0 the model's own, at most 16,384. Refuses what the
/// model's positions do not reach.
Result<std::int64_t> choose_context(const spec::ModelConfig& config, std::int64_t asked);

/// Whether a backend computes on a device, which expert records may be brought to.
bool has_device(std::string_view backend);

/// Plans a model from its config, and, where `source` is not null, from what its files hold. Where it is to
/// be packed, pack::plan_store says what that makes of it. Errors: those of plan_store and of tier_of, sizes
/// out of range.
Result<MemoryPlan> make_plan(const spec::ModelConfig& config, const store::SourceForm* source,
                             const PlanOptions& options, const FoundMemory& memory);

/// The place of the experts' precision among those that are stored, or will be once packed. Errors as
/// make_plan; it asks nothing about memory.
Result<std::size_t> planned_tier(const store::SourceForm& source, const PlanOptions& options);

/// Refuses a model that cannot be held whole in options.memory, naming need, found, and the largest part.
/// Where neither the caller nor the system says what there is, nothing is refused.
Result<void> check_resident(const store::SourceForm& source, const PlanOptions& options);

struct PoolChoice {
  std::uint64_t bytes = 0;  // 0: all records are kept
  std::size_t least_slots = 0;
  std::int64_t max_rows = 0;       // of a prefill chunk
  std::uint64_t device_bytes = 0;  // of the device pool before it; 0: none
};

/// Decides about the expert pool. `asked` as EngineOptions::pool. Errors: a pool smaller than a step needs;
/// kOutOfMemory where nothing fits, with the need, the found and the largest part.
Result<PoolChoice> choose_pool(const store::SourceForm& source, PlanOptions options,
                               std::optional<std::uint64_t> asked);

}  // namespace sluice::engine
