#include "experts/pool.h"

#include <limits>
#include <system_error>

namespace sluice::experts {

Pool::Pool(const Options& options)
    : options_(options),
      slot_of_(static_cast<std::size_t>(options.records), kNone),
      heat_(static_cast<std::size_t>(options.records), options.half_life) {}

Pool::~Pool() = default;

Result<std::unique_ptr<Pool>> Pool::create(const Options& options, ReadSlot read) {
  constexpr std::size_t kPage = 4096;
  if (options.slots < 1) {
    return make_error(ErrorCode::kInvalidArgument, "expert pool of {} slots: needed at least 1",
                      options.slots);
  }
  std::unique_ptr<Pool> pool(new Pool(options));
  SLUICE_ASSIGN(pool->memory_, AlignedBuffer::create(options.slots * options.slot_bytes, kPage));
  for (std::size_t i = 0; i < options.slots; ++i) {
    auto& slot = *pool->slots_.emplace_back(std::make_unique<Slot>());
    slot.read.slot = {pool->memory_.data() + i * options.slot_bytes, options.slot_bytes};
    pool->make_idle(i);
  }
  try {
    pool->reader_ = std::make_unique<RecordReader>(std::move(read), options.reader_threads, options.retries);
  } catch (const std::system_error& error) {
    return make_error(ErrorCode::kOutOfMemory, "{} threads to read experts: {}", options.reader_threads,
                      error.what());
  }
  return pool;
}

void Pool::make_idle(std::size_t number) {
  Slot& slot = *slots_[number];
  slot.key = slot.read.id < 0 ? -std::numeric_limits<double>::infinity() : heat_.of(slot.read.id);
  idle_.emplace(slot.key, number);
}

std::size_t Pool::take_coldest() {
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    const std::size_t number = it->second;
    Slot& slot = *slots_[number];
    if (slot.filling) {
      // Read ahead for nobody: it can be taken back unless it is running; then its end frees it.
      if (!reader_->cancel(slot.read) && !reader_->is_done(slot.read)) continue;
      slot.filling = false;
    }
    idle_.erase(it);
    if (slot.read.id >= 0) {
      slot_of_[static_cast<std::size_t>(slot.read.id)] = kNone;
      ++counts_.evictions;
    }
    slot.read.id = -1;
    return number;
  }
  return kNone;
}

Result<std::size_t> Pool::lease(std::int64_t record, double weight) {
  heat_.touch(record, weight);
  std::size_t number = slot_of_[static_cast<std::size_t>(record)];
  if (number != kNone) {
    Slot& slot = *slots_[number];
    if (slot.leases == 0) {
      idle_.erase({slot.key, number});
      ++leased_;
    }
    ++slot.leases;
    if (slot.filling) {
      reader_->promote(slot.read);
      ++counts_.late;
    } else {
      ++counts_.hits;
    }
    return number;
  }
  number = take_coldest();
  if (number == kNone && leased_ < slots_.size()) {
    // All that is idle is being read ahead right now: wait for one of these reads.
    Slot& slot = *slots_[idle_.begin()->second];
    (void)reader_->wait(slot.read);
    number = take_coldest();
  }
  if (number == kNone) {
    return make_error(ErrorCode::kLimit, "expert pool: all {} slots are in use at once, more needed",
                      slots_.size());
  }
  Slot& slot = *slots_[number];
  slot.read.id = record;
  slot.filling = true;
  slot.leases = 1;
  ++leased_;
  slot_of_[static_cast<std::size_t>(record)] = number;
  ++counts_.misses;
  counts_.bytes_read += options_.slot_bytes;
  reader_->start(slot.read, Priority::kDemand);
  return number;
}

bool Pool::is_ready(std::size_t number) {
  Slot& slot = *slots_[number];
  if (slot.filling && reader_->is_done(slot.read)) return wait(number).ok();
  return !slot.filling;
}

Result<void> Pool::wait(std::size_t number) {
  Slot& slot = *slots_[number];
  if (!slot.filling) return {};
  auto read = reader_->wait(slot.read);
  if (read.ok()) slot.filling = false;
  return read;
}

void Pool::release(std::size_t number) {
  Slot& slot = *slots_[number];
  if (--slot.leases > 0) return;
  --leased_;
  if (slot.filling && reader_->is_done(slot.read)) {
    // Nobody waited, or it failed: what lies there is not to be trusted.
    slot_of_[static_cast<std::size_t>(slot.read.id)] = kNone;
    slot.read.id = -1;
    slot.filling = false;
  }
  make_idle(number);
}

void Pool::prefetch(std::int64_t record, double expected_weight) {
  if (slot_of_[static_cast<std::size_t>(record)] != kNone) return;
  if (idle_.empty()) return;
  // Never at the price of a hotter record.
  heat_.touch(record, expected_weight);
  if (idle_.begin()->first > heat_.of(record)) return;
  const std::size_t number = take_coldest();
  if (number == kNone) return;
  Slot& slot = *slots_[number];
  slot.read.id = record;
  slot.filling = true;
  slot_of_[static_cast<std::size_t>(record)] = number;
  counts_.bytes_read += options_.slot_bytes;
  make_idle(number);
  reader_->start(slot.read, Priority::kAhead);
}

}  // namespace sluice::experts
