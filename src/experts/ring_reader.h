// Records read by the kernel straight into their slots, a queue of them at once.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/read_ring.h"
#include "experts/record_reader.h"

namespace sluice::experts {

/// Where the bytes of a slot lie, for readers that work on descriptors.
struct SlotPlace {
  int fd = -1;  // opened for direct reads
  std::uint64_t offset = 0;
};

/// How records come into slots.
struct SlotSource {
  ReadSlot read;
  /// Where a ring finds record `id`; none: only `read` can read it. May change to none with time.
  std::function<std::optional<SlotPlace>(std::int64_t id)> place;
  /// Whether `slot` holds record `id` as it was written.
  std::function<Result<void>(std::int64_t id, std::span<const std::byte> slot)> check;
};

/// One thread keeps the ring full; others compare what came with its checksum. Whatever does not come whole
/// and right at once (an error, a short read, a wrong checksum) is read again as a thread would read it.
class RingReader final : public RecordReader {
 public:
  /// `memory` holds all slots, `slot_bytes` each. Throws std::system_error when the system has no more
  /// threads.
  RingReader(SlotSource source, std::unique_ptr<ReadRing> ring, std::span<std::byte> memory,
             std::size_t slot_bytes, const Options& options);
  /// Drops what is queued and waits for what is running.
  ~RingReader() override;
  [[nodiscard]] std::string_view name() const override { return "io_uring"; }
  void release_memory() override;
  /// Whether slots are kept in place for the kernel.
  [[nodiscard]] bool registered() const;

 private:
  void wake() override;
  void pump();
  void check();
  void begin(Read& read);
  void give_up(const Error& error);
  /// Gives a read to the threads that check: to compare, or, after a failure, to read again.
  void hand_on(Read& read, bool came);
  void join();

  struct Came {
    Read* read = nullptr;
    bool came = false;  // whole, as far as the ring knows
  };
  /// Compares with the checksum, and reads again what did not come whole and right.
  void finish_or_again(const Came& one);

  SlotSource source_;
  std::unique_ptr<ReadRing> ring_;
  std::vector<Read*> flying_;  // by tag; the pump's
  std::vector<std::size_t> free_;
  std::size_t in_ring_ = 0;
  bool broken_ = false;

  // Under mutex_:
  bool asleep_ = false;  // the pump waits in the ring
  bool registered_ = false;
  bool release_ = false;
  std::deque<Came> came_;
  bool pump_ended_ = false;

  std::condition_variable idle_, came_more_, released_;
  std::vector<std::thread> threads_;
};

/// A ring's reader where source and system allow it, else threads; `note` then says why.
std::unique_ptr<RecordReader> make_reader(SlotSource source, std::span<std::byte> memory,
                                          std::size_t slot_bytes, const RecordReader::Options& options,
                                          bool ring, std::string& note);

}  // namespace sluice::experts
