#include "experts/pool.h"

#include <sys/mman.h>

#include <limits>
#include <system_error>
#include <utility>

namespace sluice::experts {
namespace {

constexpr double kEmpty = -std::numeric_limits<double>::infinity();

}  // namespace

Pool::Pool(const Options& options)
    : options_(options),
      slot_of_(static_cast<std::size_t>(options.records) * options.tier_bytes.size(), kNone),
      heat_(slot_of_.size(), options.half_life) {}

Pool::~Pool() = default;

Result<std::unique_ptr<Pool>> Pool::create(const Options& options, SlotSource source) {
  constexpr std::size_t kPage = 4096;
  if (options.slots < 1) {
    return make_error(ErrorCode::kInvalidArgument, "expert pool of {} slots: needed at least 1",
                      options.slots);
  }
  std::unique_ptr<Pool> pool(new Pool(options));
  const std::size_t bytes = options.slots * options.slot_bytes;
  if (options.allocate) {
    SLUICE_ASSIGN(pool->lent_, options.allocate(bytes));
    pool->memory_ = {pool->lent_->address(), bytes};
  } else {
    SLUICE_ASSIGN(pool->own_, AlignedBuffer::create(bytes, kPage));
    pool->memory_ = pool->own_.bytes();
  }
  pool->usable_ = options.slots;
  for (std::size_t i = 0; i < options.slots; ++i) {
    pool->slots_.push_back(std::make_unique<Slot>());
    pool->make_idle(i, kEmpty);
  }
  try {
    pool->reader_ = make_reader(std::move(source), pool->memory_, options.slot_bytes, options.reader,
                                options.ring, pool->reader_note_);
  } catch (const std::system_error& error) {
    return make_error(ErrorCode::kOutOfMemory, "threads to read experts: {}", error.what());
  }
  return pool;
}

void Pool::make_idle(std::size_t number, double key) {
  Slot& slot = *slots_[number];
  slot.key = key;
  idle_.emplace(key, number);
  if (surplus_ > 0) shrink(usable_ - surplus_);
}

void Pool::empty(Slot& slot) {
  if (slot.read.id >= 0) slot_of_[static_cast<std::size_t>(slot.read.id)] = kNone;
  slot.read.id = -1;
  slot.filling = false;
  slot.ahead = false;
}

std::size_t Pool::take_coldest() {
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    const std::size_t number = it->second;
    Slot& slot = *slots_[number];
    // A read that nobody waits for can be taken back unless it is running; then its end frees it.
    const bool cancelled = slot.filling && reader_->cancel(slot.read);
    if (slot.filling && !cancelled && !reader_->is_done(slot.read)) continue;
    idle_.erase(it);
    if (cancelled) {
      uncount(slot);
    } else if (slot.ahead) {
      ++counts_.ahead_wasted;
    }
    if (slot.read.id >= 0) ++counts_.evictions;
    const bool lost = reader_->is_lost(slot.read);
    empty(slot);
    if (!lost) return number;
    --usable_;
    return take_coldest();
  }
  return kNone;
}

// Of a read that never began.
void Pool::uncount(const Slot& slot) {
  counts_.bytes_read -= slot.read.slot.size();
  if (slot.ahead) --counts_.ahead;
}

void Pool::fill(std::size_t number, std::int64_t record, Priority priority) {
  Slot& slot = *slots_[number];
  const std::size_t bytes = options_.tier_bytes[static_cast<std::size_t>(record / options_.records)];
  slot.read.id = record;
  slot.read.slot = memory_.subspan(number * options_.slot_bytes, bytes);
  slot.filling = true;
  slot_of_[static_cast<std::size_t>(record)] = number;
  counts_.bytes_read += bytes;
  reader_->start(slot.read, priority);
}

bool Pool::is_good(Slot& slot) {
  if (!slot.filling || !reader_->is_done(slot.read)) return true;
  // Whoever reads again tries again.
  if (!reader_->wait(slot.read).ok()) return false;
  slot.filling = false;
  return true;
}

std::size_t Pool::take_for_demand() {
  std::size_t number = take_coldest();
  while (number == kNone && !idle_.empty()) {
    // All that is idle is being read ahead right now: wait for one of these reads.
    (void)reader_->wait(slots_[idle_.begin()->second]->read);
    number = take_coldest();
  }
  return number;
}

Result<Pool::Leased> Pool::lease(std::int64_t record, double weight) {
  heat_.touch(record, weight);
  std::size_t number = slot_of_[static_cast<std::size_t>(record)];
  if (number != kNone && slots_[number]->leases == 0 && !is_good(*slots_[number])) {
    idle_.erase({slots_[number]->key, number});
    discard(number);
    number = kNone;
  }
  if (number == kNone) {
    number = take_for_demand();
    if (number == kNone) {
      return make_error(ErrorCode::kLimit, "expert pool: all {} slots are in use at once, more needed",
                        usable_);
    }
    slots_[number]->leases = 1;
    ++leased_;
    ++counts_.misses;
    fill(number, record, Priority::kDemand);
    return Leased{number, Found::kMiss, false};
  }
  Slot& slot = *slots_[number];
  if (slot.leases++ == 0) {
    idle_.erase({slot.key, number});
    ++leased_;
  }
  Found found = Found::kHit;
  if (slot.filling) {
    reader_->promote(slot.read);
    found = Found::kLate;
  }
  ++(found == Found::kLate ? counts_.late : counts_.hits);
  if (slot.ahead) ++(found == Found::kLate ? counts_.ahead_late : counts_.ahead_useful);
  return Leased{number, found, std::exchange(slot.ahead, false)};
}

bool Pool::is_done(std::size_t number) const {
  const Slot& slot = *slots_[number];
  return !slot.filling || reader_->is_done(slot.read);
}

Result<void> Pool::wait(std::size_t number) {
  Slot& slot = *slots_[number];
  if (!slot.filling) return {};
  auto read = reader_->wait(slot.read);
  if (read.ok()) slot.filling = false;
  return read;
}

void Pool::wait_any(std::span<const std::size_t> slots) {
  std::vector<Read*> reads;
  for (const std::size_t slot : slots) {
    if (is_done(slot)) return;
    reads.push_back(&slots_[slot]->read);
  }
  if (!reads.empty()) reader_->wait_any(reads);
}

// What was read there is not to be trusted; the slot itself is, unless something may yet write into it.
void Pool::discard(std::size_t number) {
  const bool lost = reader_->is_lost(slots_[number]->read);
  empty(*slots_[number]);
  if (lost) {
    --usable_;  // never idle again
  } else {
    make_idle(number, kEmpty);
  }
}

void Pool::release(std::size_t number) {
  Slot& slot = *slots_[number];
  if (--slot.leases > 0) return;
  --leased_;
  if (!is_good(slot)) return discard(number);
  make_idle(number, heat_.of(slot.read.id));
}

bool Pool::prefetch(std::int64_t record, double expected_weight, Why why) {
  if (has(record)) return true;
  if (idle_.empty()) return false;
  // Never at the price of a hotter record.
  const double heat = why == Why::kWarm ? heat_.of(record) : heat_.would_be(record, expected_weight);
  if (idle_.begin()->first > heat) return false;
  const std::size_t number = take_coldest();
  if (number == kNone) return false;
  slots_[number]->ahead = why == Why::kPredicted;
  if (why == Why::kPredicted) ++counts_.ahead;
  fill(number, record, Priority::kAhead);
  make_idle(number, heat);
  return true;
}

bool Pool::cancel_ahead(std::int64_t record) {
  const std::size_t number = slot_of_[static_cast<std::size_t>(record)];
  if (number == kNone) return false;
  Slot& slot = *slots_[number];
  if (!slot.ahead || !slot.filling || slot.leases > 0 || !reader_->cancel(slot.read)) return false;
  uncount(slot);
  idle_.erase({slot.key, number});
  empty(slot);
  make_idle(number, kEmpty);
  return true;
}

void Pool::settle() {
  // What a read came to is looked at when its record is wanted.
  for (const auto& slot : slots_) {
    if (slot->filling) reader_->promote(slot->read);
  }
  for (const auto& slot : slots_) {
    if (slot->filling) (void)reader_->wait(slot->read);
  }
}

void Pool::shrink(std::size_t slots) {
  if (pinned()) return;
  surplus_ = usable_ > slots ? usable_ - slots : 0;
  if (surplus_ == 0) return;
  // Pages that are kept in place for the kernel would not go.
  reader_->release_memory();
  while (surplus_ > 0) {
    const std::size_t number = take_coldest();
    if (number == kNone) return;
    give_back(number);
    surplus_ = usable_ > slots ? usable_ - slots : 0;
  }
}

void Pool::give_back(std::size_t number) {
  --usable_;
  // What cannot be given back stays; it is not used again either way.
  (void)madvise(memory_.data() + number * options_.slot_bytes, options_.slot_bytes, MADV_DONTNEED);
}

}  // namespace sluice::experts
