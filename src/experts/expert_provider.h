// Who gives a step the expert records it needs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "backend/types.h"
#include "base/result.h"

namespace sluice::experts {

/// What a step's rows are: a prefill goes through the records once, decoding comes back to them.
enum class Use { kDecode, kPrefill };

/// The experts that the rows of a step chose in one record layer; [ids] each.
struct Wanted {
  std::int64_t layer = 0;
  std::span<const std::uint32_t> ids;  // ascending, without repeats
  std::span<const float> weight;       // the largest that a row gives it
  Use use = Use::kDecode;
};

/// One layer's records of a step, given piece by piece in the order in which they can be computed.
class Visit {
 public:
  virtual ~Visit() = default;
  /// Places in Wanted::ids of records that are in memory and were not given before; they may be read until
  /// the next call and no longer than the visit lives. With `wait` it is empty only when all were given;
  /// without also when none is ready. Fails when a record cannot be read.
  virtual Result<std::span<const std::uint32_t>> next(bool wait) = 0;
  /// The records of those places.
  [[nodiscard]] virtual std::span<const backend::ExpertEntry> entries() const = 0;
  /// Whether every record is there or being read: what is read from now on may be for the next layer.
  [[nodiscard]] virtual bool all_started() const { return true; }
  /// Whether the visit itself sees to it that the device is done with a record before that goes: if so the
  /// caller need not wait for the device before it calls next(), or ends the visit.
  [[nodiscard]] virtual bool asynchronous() const { return false; }
  /// Places that are never given, because a choice of the user leaves such out (docs/streaming.md).
  [[nodiscard]] virtual std::span<const std::uint32_t> dropped() const { return {}; }
};

/// What became of the records that were wanted, since the start.
struct ExpertCounts {
  std::uint64_t hits = 0;    // in memory
  std::uint64_t late = 0;    // being read ahead already
  std::uint64_t misses = 0;  // read only then
  std::uint64_t bytes_read = 0;
  std::uint64_t retries = 0;
  std::uint64_t ahead = 0;  // read before they were wanted
  std::uint64_t ahead_useful = 0, ahead_late = 0, ahead_wasted = 0;
  std::uint64_t low_tier = 0;  // computed with at less than the best precision
  std::uint64_t dropped = 0;
  double wait_seconds = 0;  // for reads, with nothing left to compute
  double read_seconds = 0;  // with a read under way
  // Of a device with memory of its own, where not all records are in that.
  std::uint64_t device_hits = 0;  // of `hits`: in the device's memory
  std::uint64_t in_place = 0;     // computed with where the host has them
  std::uint64_t copied = 0;       // into the device's memory
  std::uint64_t bus_bytes = 0;    // of both
};

class Statistics;

class ExpertProvider {
 public:
  virtual ~ExpertProvider() = default;
  /// Tells `statistics`, which lives longer, from now on what becomes of records.
  virtual void record_to(Statistics* statistics) { statistics_ = statistics; }
  /// One visit at a time.
  virtual Result<std::unique_ptr<Visit>> visit(const Wanted& wanted) = 0;

  /// Whether it pays to say which experts of a layer will be wanted soon.
  [[nodiscard]] virtual bool wants_prediction(std::int64_t /*layer*/, Use /*use*/) { return false; }
  /// The layer's experts that will be wanted soon, likeliest first.
  virtual void predict(std::int64_t /*layer*/, std::span<const std::uint32_t> /*ids*/, Use /*use*/) {}

  /// Records of a layer were wanted that a tier before this one has: they are hot all the same.
  virtual void touched(std::int64_t /*layer*/, std::span<const std::uint32_t> /*ids*/, Use /*use*/) {}
  /// The entries of all experts of a layer in the backend's memory, where every record stays for good: then
  /// no visit is needed. Null otherwise.
  [[nodiscard]] virtual backend::Dev<const backend::ExpertEntry> table(std::int64_t /*layer*/) { return {}; }

  /// A step of the model is over.
  virtual void end_step() {}
  /// Waits for what is being read ahead, to begin a measurement with nothing under way.
  virtual void settle() {}
  [[nodiscard]] virtual ExpertCounts counts() const { return {}; }
  /// Bytes of memory held for records.
  [[nodiscard]] virtual std::uint64_t bytes() const = 0;
  /// Bytes of a device's memory held for records that are also elsewhere.
  [[nodiscard]] virtual std::uint64_t device_bytes() const { return 0; }
  /// "memory", "io_uring" or "threads": how records come in.
  [[nodiscard]] virtual std::string_view reader() const { return "memory"; }

 protected:
  Statistics* statistics_ = nullptr;
};

/// Called during long loads with bytes done and in all.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

}  // namespace sluice::experts
