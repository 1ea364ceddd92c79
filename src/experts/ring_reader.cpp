#include "experts/ring_reader.h"

#include <algorithm>
#include <utility>

namespace sluice::experts {
namespace {

constexpr int kCheckers = 2;  // a core compares some 20 GB/s: more than drives give

}  // namespace

RingReader::RingReader(SlotSource source, std::unique_ptr<ReadRing> ring, std::span<std::byte> memory,
                       std::size_t slot_bytes, const Options& options)
    : RecordReader(source.read, options), source_(std::move(source)), ring_(std::move(ring)) {
  options_.depth = std::min(options_.depth, static_cast<int>(ring_->depth()));
  flying_.resize(static_cast<std::size_t>(options_.depth));
  for (std::size_t tag = flying_.size(); tag > 0; --tag) free_.push_back(tag - 1);
  registered_ = ring_->register_memory(memory, slot_bytes);
  try {
    threads_.emplace_back([this] { pump(); });
    for (int i = 0; i < kCheckers; ++i) threads_.emplace_back([this] { check(); });
  } catch (...) {
    join();
    throw;
  }
}

RingReader::~RingReader() {
  join();
}

void RingReader::join() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    drop_queued();
    if (threads_.empty()) pump_ended_ = true;
  }
  idle_.notify_all();
  ring_->wake();
  came_more_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void RingReader::wake() {
  bool asleep = false;
  {
    const std::scoped_lock lock(mutex_);
    asleep = asleep_;
    asleep_ = false;
  }
  if (asleep) {
    ring_->wake();
  } else {
    idle_.notify_one();
  }
}

bool RingReader::registered() const {
  const std::scoped_lock lock(mutex_);
  return registered_;
}

void RingReader::release_memory() {
  std::unique_lock lock(mutex_);
  if (!registered_) return;
  release_ = true;
  lock.unlock();
  idle_.notify_one();
  ring_->wake();
  lock.lock();
  released_.wait(lock, [this] { return !registered_; });
}

void RingReader::begin(Read& read) {
  const auto place = broken_ ? std::nullopt : source_.place(read.id);
  if (!place) return hand_on(read, false);
  const std::size_t tag = free_.back();
  free_.pop_back();
  flying_[tag] = &read;
  ++in_ring_;
  ring_->read(place->fd, place->offset, read.slot, tag);
}

void RingReader::hand_on(Read& read, bool came) {
  {
    const std::scoped_lock lock(mutex_);
    came_.push_back({&read, came});
  }
  came_more_.notify_one();
}

// The ring is of no use any more and may yet write: what is under way fails, its slots are given up, and all
// later records are read by threads.
void RingReader::give_up(const Error& error) {
  broken_ = true;
  for (Read*& flying : flying_) {
    if (Read* read = std::exchange(flying, nullptr)) lose(*read, error);
  }
  in_ring_ = 0;
}

void RingReader::pump() {
  std::vector<Read*> fresh;
  std::vector<ReadRing::Ended> ended;
  std::optional<Came> kept;  // to be looked at once new reads are under way
  while (true) {
    fresh.clear();
    {
      std::unique_lock lock(mutex_);
      // While memory is to be released, what flies lands and nothing else starts.
      if (release_ && in_ring_ == 0) {
        ring_->release_memory();
        registered_ = false;
        release_ = false;
        released_.notify_all();
      }
      if (in_ring_ == 0 && !kept) idle_.wait(lock, [this] { return stop_ || release_ || can_begin(); });
      if (!release_) {
        while (broken_ || fresh.size() < free_.size()) {
          Read* read = next();
          if (read == nullptr) break;
          fresh.push_back(read);
        }
      }
      if (fresh.empty() && in_ring_ == 0 && !kept) {
        if (release_) continue;
        if (stop_) {
          pump_ended_ = true;
          break;
        }
      }
      asleep_ = true;
    }
    for (Read* read : fresh) begin(*read);
    if (kept) {
      ring_->submit();
      finish_or_again(*std::exchange(kept, std::nullopt));
      const std::scoped_lock lock(mutex_);
      asleep_ = false;
      continue;
    }
    if (in_ring_ == 0) {
      const std::scoped_lock lock(mutex_);
      asleep_ = false;
      continue;
    }
    ended.clear();
    const auto waited = ring_->wait(ended);
    {
      const std::scoped_lock lock(mutex_);
      asleep_ = false;
    }
    if (!waited.ok()) give_up(waited.error());
    // One is looked at here, which spares a change of threads; where more came at once, others help.
    std::optional<Came> own;
    for (const ReadRing::Ended& one : ended) {
      Read* read = std::exchange(flying_[one.tag], nullptr);
      free_.push_back(one.tag);
      --in_ring_;
      const bool came = one.result == static_cast<std::int64_t>(read->slot.size());
      if (came && !own) {
        own = Came{read, came};
      } else {
        hand_on(*read, came);
      }
    }
    if (own) kept = own;
  }
  came_more_.notify_all();
}

void RingReader::check() {
  while (true) {
    Came one;
    {
      std::unique_lock lock(mutex_);
      came_more_.wait(lock, [this] { return pump_ended_ || !came_.empty(); });
      if (came_.empty()) return;
      one = came_.front();
      came_.pop_front();
    }
    finish_or_again(one);
  }
}

void RingReader::finish_or_again(const Came& one) {
  if (one.came && source_.check(one.read->id, one.read->slot).ok()) {
    finish(*one.read, {}, 0);
  } else {
    read_whole(*one.read, one.came);
  }
}

std::unique_ptr<RecordReader> make_reader(SlotSource source, std::span<std::byte> memory,
                                          std::size_t slot_bytes, const RecordReader::Options& options,
                                          bool ring, std::string& note) {
  note.clear();
  if (ring && source.place && source.place(0)) {
    auto opened = open_read_ring(static_cast<std::size_t>(options.depth));
    if (opened.ok()) {
      return std::make_unique<RingReader>(std::move(source), std::move(opened).value(), memory, slot_bytes,
                                          options);
    }
    note = opened.error().message + ": records are read by threads";
  } else if (ring) {
    note = "no direct reads from this source: records are read by threads";
  }
  return std::make_unique<ThreadReader>(std::move(source.read), options);
}

}  // namespace sluice::experts
