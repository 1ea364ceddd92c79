// A bounded pool of slots for expert records: which record lies where, who uses it, which goes next.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/buffer.h"
#include "base/result.h"
#include "experts/heat.h"
#include "experts/ring_reader.h"

namespace sluice::experts {

struct PoolCounts {
  std::uint64_t hits = 0;    // wanted and there
  std::uint64_t late = 0;    // wanted and being read already, ahead of time
  std::uint64_t misses = 0;  // wanted and read only then
  std::uint64_t evictions = 0;
  std::uint64_t bytes_read = 0;
  std::uint64_t ahead = 0;         // read, or begun to be, before it was wanted
  std::uint64_t ahead_useful = 0;  // of those: wanted afterwards and there
  std::uint64_t ahead_late = 0;    // wanted while being read
  std::uint64_t ahead_wasted = 0;  // read, and given away before it was wanted
};

/// How a wanted record was found.
enum class Found { kHit, kLate, kMiss };

/// Memory for all slots, aligned to 4096 bytes.
using AllocateSlots = std::function<Result<std::unique_ptr<backend::Buffer>>(std::size_t bytes)>;

/// Slots belong to one thread; only the reader's threads write into them, between start and end of a read.
/// A slot that is leased, or being filled, is never given to another record.
class Pool {
 public:
  struct Options {
    std::size_t slots = 0;
    std::size_t slot_bytes = 0;  // a multiple of 4096
    std::int64_t records = 0;    // of one precision
    /// Bytes of a record's slot in each precision: record numbers go on from one to the next.
    std::vector<std::size_t> tier_bytes;
    double half_life = 0;  // steps after which a touch is worth half
    RecordReader::Options reader;
    bool ring = true;  // io_uring where possible
    /// Where slots lie, for devices that read them in place; empty: in ordinary memory.
    AllocateSlots allocate;
  };
  struct Leased {
    std::size_t slot = 0;
    Found found = Found::kHit;
    bool ahead = false;  // read because it was predicted, and wanted for the first time since
  };

  static Result<std::unique_ptr<Pool>> create(const Options& options, SlotSource source);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Slots that can hold records, and their bytes.
  [[nodiscard]] std::size_t slots() const { return usable_; }
  [[nodiscard]] std::uint64_t bytes() const { return usable_ * options_.slot_bytes; }

  /// Leases a record's slot, starting its read when it is not there. Error: every slot is leased (kLimit).
  /// The record may be used after wait().
  Result<Leased> lease(std::int64_t record, double weight);
  /// Whether the record is there or being read.
  [[nodiscard]] bool has(std::int64_t record) const {
    return slot_of_[static_cast<std::size_t>(record)] != kNone;
  }
  /// Whether a leased slot's record can be used at once, or its read has failed and wait() tells why.
  [[nodiscard]] bool is_done(std::size_t slot) const;
  /// Blocks until it can be used; an error when it cannot be read. The slot stays leased.
  Result<void> wait(std::size_t slot);
  /// Blocks until one of several leased slots is_done().
  void wait_any(std::span<const std::size_t> slots);
  void release(std::size_t slot);
  /// The read that filled a leased slot last.
  [[nodiscard]] const Read& last_read(std::size_t slot) const { return slots_[slot]->read; }
  [[nodiscard]] const std::byte* address(std::size_t slot) const {
    return memory_.data() + slot * options_.slot_bytes;
  }

  /// Starts to read a record that may be wanted soon, in the slot of a colder one that nobody uses. False
  /// when there is no such slot; true also where the record is there already.
  enum class Why {
    kPredicted,
    kWarm
  };  // a warm one was hot when the pool was last in use: its heat is known
  bool prefetch(std::int64_t record, double expected_weight, Why why = Why::kPredicted);
  /// Takes a read ahead back if it has not begun; whether that was so.
  bool cancel_ahead(std::int64_t record);

  /// Blocks until every read that was begun has ended.
  void settle();

  /// Gives memory back to the system until `slots` are left, the coldest records first; slots in use follow
  /// when they are released. There is no way back.
  void shrink(std::size_t slots);
  /// Whether a device reads the slots in place; then no memory is ever given back.
  [[nodiscard]] bool pinned() const { return lent_ != nullptr && lent_->pinned(); }

  /// One step of decoding is over.
  void tick() { heat_.tick(); }
  [[nodiscard]] Heat& heat() { return heat_; }
  [[nodiscard]] const PoolCounts& counts() const { return counts_; }
  [[nodiscard]] const RecordReader& reader() const { return *reader_; }
  /// Why records are read in a slower way than the best; empty: they are not.
  [[nodiscard]] const std::string& reader_note() const { return reader_note_; }
  [[nodiscard]] std::size_t leased() const { return leased_; }

 private:
  struct Slot {
    Read read;
    bool filling = false;  // its read was started and not yet waited for
    bool ahead = false;    // read ahead, and not wanted so far
    std::uint32_t leases = 0;
    double key = 0;  // its place among the idle
  };
  using Idle = std::set<std::pair<double, std::size_t>>;  // coldest first; empty slots before all

  explicit Pool(const Options& options);
  void make_idle(std::size_t slot, double key);
  void empty(Slot& slot);
  void uncount(const Slot& slot);
  /// Whether the slot holds its record, or will; false after a failed read.
  bool is_good(Slot& slot);
  void discard(std::size_t slot);
  std::size_t take_for_demand();
  /// The coldest idle slot, emptied; or none.
  std::size_t take_coldest();
  void fill(std::size_t number, std::int64_t record, Priority priority);
  void give_back(std::size_t slot);
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  Options options_;
  AlignedBuffer own_;
  std::unique_ptr<backend::Buffer> lent_;  // by options_.allocate
  std::span<std::byte> memory_;            // of one of them
  std::vector<std::unique_ptr<Slot>> slots_;
  std::vector<std::size_t> slot_of_;  // [records of all precisions]
  Idle idle_;
  std::size_t usable_ = 0;
  std::size_t surplus_ = 0;  // usable ones to be given back as they become idle
  std::size_t leased_ = 0;
  Heat heat_;
  PoolCounts counts_;
  std::string reader_note_;
  std::unique_ptr<RecordReader> reader_;  // last: its threads end first
};

}  // namespace sluice::experts
