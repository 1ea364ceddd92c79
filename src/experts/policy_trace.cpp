#include "experts/policy_trace.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "experts/heat.h"

namespace sluice::experts {
namespace {

constexpr std::array<std::string_view, kPolicies> kNames = {"LRU",      "CLOCK", "LFU",
                                                            "LFU aged", "heat",  "optimum"};
constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

/// The lease of some records: `first` .. `first + count` of the trace's ids.
struct Batch {
  std::size_t first = 0;
  std::size_t count = 0;
  std::uint32_t record = 0;  // of expert 0 of the layer
  Use use = Use::kDecode;
};

/// What a policy decides: which of the records that are there, and not leased, goes next. A record is told of
/// as leased before, and as idle after; it is touched once in between, at its access `at` of the trace.
class Order {
 public:
  virtual ~Order() = default;
  virtual void touch(std::uint32_t record, std::size_t at, Use use) = 0;
  /// It came into the pool, or went.
  virtual void entered(std::uint32_t) {}
  virtual void made_idle(std::uint32_t record) = 0;
  virtual void made_busy(std::uint32_t record) = 0;
  virtual std::uint32_t take_coldest() = 0;
  virtual void end_step() {}
};

/// Idle records in a heap, the lowest key first; one key is not below another's by two numbers.
class Keyed : public Order {
 public:
  struct Key {
    double value = 0;
    std::uint64_t then = 0;  // between equal values
    friend bool operator<(const Key& a, const Key& b) {
      return a.value != b.value ? a.value < b.value : a.then < b.then;
    }
  };
  explicit Keyed(std::size_t records) : place_(records, kNone), key_(records) {}

  void made_idle(std::uint32_t record) override {
    key_[record] = key_of(record);
    place_[record] = static_cast<std::uint32_t>(heap_.size());
    heap_.push_back(record);
    up(heap_.size() - 1);
  }
  void made_busy(std::uint32_t record) override { remove(place_[record]); }
  std::uint32_t take_coldest() override {
    if (heap_.empty()) return kNone;
    const std::uint32_t record = heap_[0];
    went(record);
    remove(0);
    return record;
  }

 protected:
  /// Does not change while the record is idle.
  [[nodiscard]] virtual Key key_of(std::uint32_t record) const = 0;
  virtual void went(std::uint32_t) {}

 private:
  static constexpr std::size_t kWays = 4;

  void set(std::size_t at, std::uint32_t record) {
    heap_[at] = record;
    place_[record] = static_cast<std::uint32_t>(at);
  }
  void up(std::size_t at) {
    const std::uint32_t record = heap_[at];
    while (at > 0) {
      const std::size_t parent = (at - 1) / kWays;
      if (!(key_[record] < key_[heap_[parent]])) break;
      set(at, heap_[parent]);
      at = parent;
    }
    set(at, record);
  }
  void down(std::size_t at) {
    const std::uint32_t record = heap_[at];
    while (true) {
      const std::size_t first = at * kWays + 1;
      if (first >= heap_.size()) break;
      std::size_t least = first;
      for (std::size_t i = first + 1; i < std::min(first + kWays, heap_.size()); ++i) {
        if (key_[heap_[i]] < key_[heap_[least]]) least = i;
      }
      if (!(key_[heap_[least]] < key_[record])) break;
      set(at, heap_[least]);
      at = least;
    }
    set(at, record);
  }
  void remove(std::size_t at) {
    place_[heap_[at]] = kNone;
    const std::uint32_t last = heap_.back();
    heap_.pop_back();
    if (at == heap_.size()) return;
    set(at, last);
    down(at);
    up(place_[last]);
  }

  std::vector<std::uint32_t> heap_;
  std::vector<std::uint32_t> place_;  // [records] in the heap
  std::vector<Key> key_;              // [records]
};

class Lru final : public Keyed {
 public:
  explicit Lru(std::size_t records) : Keyed(records), last_(records) {}
  void touch(std::uint32_t record, std::size_t at, Use) override { last_[record] = at; }

 private:
  [[nodiscard]] Key key_of(std::uint32_t record) const override { return {0, last_[record]}; }
  std::vector<std::uint64_t> last_;
};

class Lfu final : public Keyed {
 public:
  Lfu(std::size_t records, bool ages) : Keyed(records), ages_(ages), count_(records), last_(records) {}
  void touch(std::uint32_t record, std::size_t at, Use) override {
    count_[record] += 1;
    last_[record] = at;
  }
  void entered(std::uint32_t record) override {
    if (ages_) count_[record] = age_;
  }

 private:
  [[nodiscard]] Key key_of(std::uint32_t record) const override { return {count_[record], last_[record]}; }
  void went(std::uint32_t record) override { age_ = count_[record]; }
  bool ages_;
  double age_ = 0;
  std::vector<double> count_;
  std::vector<std::uint64_t> last_;
};

class Hot final : public Keyed {
 public:
  Hot(std::size_t records, const PolicyOptions& options)
      : Keyed(records), heat_(records, options.half_life), prefill_weight_(options.prefill_weight) {}
  void touch(std::uint32_t record, std::size_t, Use use) override {
    heat_.touch(record, use == Use::kDecode ? kDecodeWeight : prefill_weight_);
  }
  void end_step() override { heat_.tick(); }

 private:
  [[nodiscard]] Key key_of(std::uint32_t record) const override { return {heat_.of(record), record}; }
  Heat heat_;
  double prefill_weight_;
};

class Optimum final : public Keyed {
 public:
  Optimum(std::size_t records, const std::vector<std::uint64_t>& next)
      : Keyed(records), next_(next), wanted_(records, kNever) {}
  void touch(std::uint32_t record, std::size_t at, Use) override { wanted_[record] = next_[at]; }

 private:
  [[nodiscard]] Key key_of(std::uint32_t record) const override { return {0, kNever - wanted_[record]}; }
  const std::vector<std::uint64_t>& next_;
  std::vector<std::uint64_t> wanted_;
};

class Clock final : public Order {
 public:
  Clock(std::size_t records, std::size_t slots) : ring_(slots, kNone), place_(records, kNone) {}

  void touch(std::uint32_t record, std::size_t, Use) override { at(record).touched = true; }
  void entered(std::uint32_t record) override {
    // The slot that the last one left, where the hand stands, or the next empty one.
    const std::size_t slot = free_ != kNone ? free_ : used_++;
    free_ = kNone;
    ring_[slot] = {record};
    place_[record] = static_cast<std::uint32_t>(slot);
  }
  void made_idle(std::uint32_t record) override {
    at(record).busy = false;
    ++idle_;
  }
  void made_busy(std::uint32_t record) override {
    at(record).busy = true;
    --idle_;
  }
  std::uint32_t take_coldest() override {
    if (idle_ == 0) return kNone;
    while (true) {
      Slot& slot = ring_[hand_];
      const std::size_t here = hand_;
      hand_ = (hand_ + 1) % ring_.size();
      if (slot.record == kNone || slot.busy) continue;
      if (std::exchange(slot.touched, false)) continue;
      free_ = static_cast<std::uint32_t>(here);
      --idle_;
      return std::exchange(slot.record, kNone);
    }
  }

 private:
  struct Slot {
    std::uint32_t record = kNone;
    bool touched = false;
    bool busy = true;
    Slot(std::uint32_t of) : record(of) {}  // NOLINT: implicit by design
  };
  Slot& at(std::uint32_t record) { return ring_[place_[record]]; }

  std::vector<Slot> ring_;
  std::vector<std::uint32_t> place_;  // [records] in the ring
  std::size_t hand_ = 0;
  std::size_t used_ = 0;  // slots that have held something
  std::uint32_t free_ = kNone;
  std::size_t idle_ = 0;
};

/// For each access of the trace, where the record is wanted next, if a decode step wants it.
std::vector<std::uint64_t> next_uses(const RouteTrace& trace) {
  const auto experts = static_cast<std::size_t>(trace.shape.experts);
  std::vector<std::uint64_t> next(trace.ids.size(), kNever);
  std::vector<std::uint64_t> seen(static_cast<std::size_t>(trace.shape.layers) * experts, kNever);
  for (std::size_t step = trace.steps.size(); step-- > 0;) {
    const bool decode = trace.steps[step].use == Use::kDecode;
    const std::size_t first = trace.steps[step].first_layer;
    for (std::size_t layer = first + trace.layers_of(step).size(); layer-- > first;) {
      const auto ids = trace.ids_of(layer);
      for (std::size_t i = ids.size(); i-- > 0;) {
        const std::size_t at = trace.layers[layer].first_id + i;
        std::uint64_t& last = seen[trace.layers[layer].layer * experts + ids[i]];
        next[at] = last;
        last = decode ? at : kNever;
      }
    }
  }
  return next;
}

class Replay {
 public:
  Replay(const RouteTrace& trace, Order& order, std::size_t slots)
      : trace_(trace), order_(order), slots_(slots), there_(records(trace), 0) {}

  static std::size_t records(const RouteTrace& trace) {
    return static_cast<std::size_t>(trace.shape.layers * trace.shape.experts);
  }

  PolicyCounts run() {
    const std::size_t most = slots_ / 2;
    for (std::size_t step = 0; step < trace_.steps.size(); ++step) {
      const std::size_t first_layer = trace_.steps[step].first_layer;
      for (std::size_t i = 0; i < trace_.layers_of(step).size(); ++i) {
        const RouteTrace::Layer& layer = trace_.layers[first_layer + i];
        const std::size_t count = trace_.ids_of(first_layer + i).size();
        Batch before;
        for (std::size_t done = 0; done < count; done += most) {
          const Batch batch{layer.first_id + done, std::min(most, count - done),
                            layer.layer * static_cast<std::uint32_t>(trace_.shape.experts),
                            trace_.steps[step].use};
          lease(batch);
          release(before);
          before = batch;
        }
        release(before);
      }
      order_.end_step();
    }
    return counts_;
  }

 private:
  [[nodiscard]] std::uint32_t record(const Batch& batch, std::size_t i) const {
    return batch.record + trace_.ids[batch.first + i];
  }

  void lease(const Batch& batch) {
    const bool decode = batch.use == Use::kDecode;
    missing_.clear();
    for (std::size_t i = 0; i < batch.count; ++i) {
      const std::uint32_t wanted = record(batch, i);
      if (there_[wanted] == 0) {
        missing_.push_back(i);
        continue;
      }
      ++(decode ? counts_.hits : counts_.prefill_hits);
      order_.made_busy(wanted);
      order_.touch(wanted, batch.first + i, batch.use);
    }
    for (const std::size_t i : missing_) {
      const std::uint32_t wanted = record(batch, i);
      ++(decode ? counts_.misses : counts_.prefill_misses);
      if (held_ == slots_) {
        there_[order_.take_coldest()] = 0;
      } else {
        ++held_;
      }
      there_[wanted] = 1;
      order_.entered(wanted);
      order_.touch(wanted, batch.first + i, batch.use);
    }
  }
  void release(const Batch& batch) {
    for (std::size_t i = 0; i < batch.count; ++i) order_.made_idle(record(batch, i));
  }

  const RouteTrace& trace_;
  Order& order_;
  std::size_t slots_;
  std::size_t held_ = 0;             // slots that hold something
  std::vector<std::uint8_t> there_;  // [records]
  std::vector<std::size_t> missing_;
  PolicyCounts counts_;
};

}  // namespace

std::string_view policy_name(Policy policy) {
  return kNames[static_cast<std::size_t>(policy)];
}

PolicyCounts replay(const RouteTrace& trace, Policy policy, const PolicyOptions& options) {
  const std::size_t records = Replay::records(trace);
  const std::size_t slots = std::max<std::size_t>(options.slots, 2);
  const auto run = [&](Order&& order) { return Replay(trace, order, slots).run(); };
  switch (policy) {
    case Policy::kLru:
      return run(Lru(records));
    case Policy::kClock:
      return run(Clock(records, slots));
    case Policy::kLfu:
      return run(Lfu(records, false));
    case Policy::kLfuAged:
      return run(Lfu(records, true));
    case Policy::kHeat:
      return run(Hot(records, options));
    case Policy::kOptimum:
      break;
  }
  const auto next = next_uses(trace);
  return run(Optimum(records, next));
}

}  // namespace sluice::experts
