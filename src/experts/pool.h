// A bounded pool of slots for expert records: which record lies where, who uses it, which goes next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/result.h"
#include "experts/heat.h"
#include "experts/record_reader.h"

namespace sluice::experts {

struct PoolCounts {
  std::uint64_t hits = 0;    // wanted and there
  std::uint64_t late = 0;    // wanted and being read already, ahead of time
  std::uint64_t misses = 0;  // wanted and read only then
  std::uint64_t evictions = 0;
  std::uint64_t bytes_read = 0;
};

/// Slots belong to one thread; only the reader's threads write into them, between start and end of a read.
/// A slot that is leased, or being filled, is never given to another record.
class Pool {
 public:
  struct Options {
    std::size_t slots = 0;
    std::size_t slot_bytes = 0;  // a multiple of 4096
    std::int64_t records = 0;
    int reader_threads = 8;
    int retries = 2;
    double half_life = 256;  // steps after which a touch is worth half
  };
  static Result<std::unique_ptr<Pool>> create(const Options& options, ReadSlot read);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  [[nodiscard]] std::size_t slots() const { return slots_.size(); }
  [[nodiscard]] std::uint64_t bytes() const { return memory_.size(); }

  /// Leases a record's slot, starting its read when it is not there. Error: every slot is leased (kLimit).
  /// The record may be used after wait().
  Result<std::size_t> lease(std::int64_t record, double weight);
  /// Whether a leased slot's record can be used at once.
  [[nodiscard]] bool is_ready(std::size_t slot);
  /// Blocks until it can be used; an error when it cannot be read. The slot stays leased.
  Result<void> wait(std::size_t slot);
  void release(std::size_t slot);
  [[nodiscard]] const std::byte* address(std::size_t slot) const {
    return memory_.data() + slot * options_.slot_bytes;
  }

  /// Starts to read a record that may be wanted soon, in the slot of a colder one that nobody uses; does
  /// nothing when it is there or no such slot is.
  void prefetch(std::int64_t record, double expected_weight);

  /// One step of decoding is over.
  void tick() { heat_.tick(); }
  [[nodiscard]] const PoolCounts& counts() const { return counts_; }
  [[nodiscard]] ReaderCounts reader_counts() const { return reader_->counts(); }
  [[nodiscard]] std::size_t leased() const { return leased_; }

 private:
  struct Slot {
    Read read;
    bool filling = false;  // its read was started and not yet waited for
    std::uint32_t leases = 0;
    double key = 0;  // its place among the idle
  };
  using Idle = std::set<std::pair<double, std::size_t>>;  // coldest first; empty slots before all

  explicit Pool(const Options& options);
  void make_idle(std::size_t slot);
  /// The coldest idle slot, emptied; or none.
  std::size_t take_coldest();
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  Options options_;
  AlignedBuffer memory_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<std::size_t> slot_of_;  // [records]
  Idle idle_;
  std::size_t leased_ = 0;
  Heat heat_;
  PoolCounts counts_;
  std::unique_ptr<RecordReader> reader_;  // last: its threads end first
};

}  // namespace sluice::experts
