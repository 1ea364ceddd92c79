#include "experts/pooled_experts.h"

#include <algorithm>
#include <deque>

#include "base/units.h"
#include "experts/heat_file.h"
#include "experts/policy.h"
#include "experts/statistics.h"

namespace sluice::experts {
namespace {

/// Most records of a prefill that are leased at once, and that are read for the next layer: a prefill streams
/// through so many slots, the coldest, and leaves the others alone. Small pools give a quarter to each.
constexpr std::size_t kRing = 128;
/// Most records of a prefill given at once, so that their slots become free in time.
constexpr std::size_t kPiece = 16;
/// Steps from one look at the system's memory to the next.
constexpr std::uint64_t kWatchEvery = 16;

std::size_t ring_of(const Pool& pool) {
  return std::clamp<std::size_t>(pool.slots() / 4, 1, kRing);
}

double weight_of(Use use) {
  return use == Use::kDecode ? kDecodeWeight : kPrefillWeight;
}

}  // namespace

class PooledExperts::PoolVisit final : public Visit {
 public:
  PoolVisit(PooledExperts& experts, const Wanted& wanted)
      : experts_(experts), statistics_(experts.statistics_), pool_(*experts.pool_), wanted_(wanted) {}
  ~PoolVisit() override {
    for (const Held& held : given_) pool_.release(held.slot);
    for (const Held& held : held_) pool_.release(held.slot);
  }

  Result<void> begin() {
    const auto begun = experts_.lookahead_.begun(wanted_.layer);
    std::size_t useful = 0;
    std::uint64_t wasted = 0;
    for (const std::uint32_t id : begun) {
      if (std::binary_search(wanted_.ids.begin(), wanted_.ids.end(), id)) {
        ++useful;
      } else if (!pool_.cancel_ahead(experts_.key(wanted_.layer, id))) {
        ++wasted;
      }
    }
    if (statistics_ != nullptr) {
      statistics_->predicted_wasted(wanted_.layer, wasted);
      statistics_->read_ahead(wanted_.layer, (useful + wasted) * experts_.options_.tiers[0].slot_bytes);
    }
    // What is there is held at once, before it can be given away; room is left to read the others.
    std::vector<std::uint32_t> missing;
    for (std::uint32_t place = 0; place < wanted_.ids.size(); ++place) {
      if (!pool_.has(experts_.key(wanted_.layer, wanted_.ids[place]))) missing.push_back(place);
    }
    experts_.lookahead_.came(wanted_.layer, useful, useful + missing.size());
    const std::size_t room = pool_.slots() - std::min(missing.size(), pool_.slots() / 2);
    auto next_missing = missing.begin();
    std::vector<std::uint32_t> later;
    for (std::uint32_t place = 0; place < wanted_.ids.size(); ++place) {
      if (next_missing != missing.end() && *next_missing == place) {
        ++next_missing;
      } else if (held_.size() < room) {
        SLUICE_TRY(take(place, 0));
      } else {
        later.push_back(place);
      }
    }
    for (const std::uint32_t place : missing) {
      if (wanted_.use == Use::kPrefill || !take_other(place)) pending_.push_back(place);
    }
    pending_.insert(pending_.end(), later.begin(), later.end());
    return start();
  }

  Result<std::span<const std::uint32_t>> next(bool wait) override {
    for (const Held& held : given_) pool_.release(held.slot);
    given_.clear();
    places_.clear();
    entries_.clear();
    SLUICE_TRY(start());
    while (true) {
      SLUICE_TRY(gather());
      if (!given_.empty() || !wait || held_.empty()) return std::span<const std::uint32_t>(places_);
      slots_.clear();
      for (const Held& held : held_) slots_.push_back(held.slot);
      const double start = steady_seconds();
      pool_.wait_any(slots_);
      const double waited = steady_seconds() - start;
      experts_.waited_ += waited;
      if (statistics_ != nullptr) statistics_->waited(wanted_.layer, waited);
    }
  }

  [[nodiscard]] std::span<const backend::ExpertEntry> entries() const override { return entries_; }
  [[nodiscard]] bool all_started() const override { return pending_.empty(); }
  [[nodiscard]] std::span<const std::uint32_t> dropped() const override { return dropped_; }

 private:
  struct Held {
    std::uint32_t place = 0;
    std::uint32_t tier = 0;
    std::size_t slot = 0;
    bool read = false;  // for this step
  };

  void tell(std::uint32_t id, std::uint32_t tier, const Pool::Leased& leased) {
    const std::int64_t layer = wanted_.layer;
    if (leased.found == Found::kHit) statistics_->hit(layer, id);
    if (leased.found == Found::kLate) statistics_->late(layer, id);
    if (leased.found == Found::kMiss) {
      statistics_->miss(layer, id, experts_.options_.tiers[tier].slot_bytes);
    }
    if (!leased.ahead) return;
    if (leased.found == Found::kHit) statistics_->predicted_useful(layer, 1);
    if (leased.found == Found::kLate) statistics_->predicted_late(layer, 1);
  }

  [[nodiscard]] double weight() const { return weight_of(wanted_.use); }

  Result<void> take(std::uint32_t place, std::uint32_t tier) {
    const std::int64_t key = experts_.key(wanted_.layer, wanted_.ids[place], tier);
    SLUICE_ASSIGN(const Pool::Leased leased, pool_.lease(key, weight()));
    held_.push_back({place, tier, leased.slot, leased.found != Found::kHit || leased.ahead});
    if (statistics_ != nullptr) tell(wanted_.ids[place], tier, leased);
    return {};
  }

  /// What a user may choose instead of waiting for a record that nobody foresaw: its smaller form, or
  /// nothing.
  bool take_other(std::uint32_t place) {
    if (experts_.options_.cut_weak > 0 && wanted_.weight[place] < experts_.options_.cut_weak) {
      dropped_.push_back(place);
      ++experts_.dropped_;
      if (statistics_ != nullptr) statistics_->dropped(wanted_.layer);
      return true;
    }
    if (experts_.options_.tiers.size() < 2 || !take(place, 1).ok()) return false;
    ++experts_.low_tier_;
    if (statistics_ != nullptr) statistics_->low_tier(wanted_.layer);
    // Wanted once, it may be wanted again: then at its best.
    pool_.prefetch(experts_.key(wanted_.layer, wanted_.ids[place]), kDecodeWeight);
    return true;
  }

  /// Begins reads as far as there is room.
  Result<void> start() {
    const std::size_t most = wanted_.use == Use::kPrefill ? ring_of(pool_) : pool_.slots();
    while (!pending_.empty() && (held_.size() < most || held_.empty())) {
      if (const auto taken = take(pending_.front(), 0); !taken.ok()) {
        // All slots are in use: by this visit, which gives them up piece by piece.
        if (!held_.empty()) break;
        return taken.error();
      }
      pending_.pop_front();
    }
    return {};
  }

  /// Moves what is there from held_ to given_.
  Result<void> gather() {
    const std::size_t most = wanted_.use == Use::kPrefill ? std::min(kPiece, ring_of(pool_)) : SIZE_MAX;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < held_.size(); ++i) {
      const Held held = held_[i];
      if (given_.size() < most && pool_.is_done(held.slot)) {
        if (auto read = pool_.wait(held.slot); !read.ok()) {
          // Nothing is lost: what was not looked at yet stays held until the visit ends.
          held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(kept),
                      held_.begin() + static_cast<std::ptrdiff_t>(i));
          return read;
        }
        if (statistics_ != nullptr && held.read) {
          const Read& read = pool_.last_read(held.slot);
          const double since = steady_seconds() - statistics_->now();
          statistics_->read(wanted_.layer, wanted_.ids[held.place], read.slot.size(), read.began - since,
                            read.ended - since);
        }
        given_.push_back(held);
        places_.push_back(held.place);
        entries_.push_back(backend::ExpertEntry::make(pool_.address(held.slot),
                                                      experts_.options_.tiers[held.tier].layout.format));
      } else {
        held_[kept++] = held;
      }
    }
    held_.resize(kept);
    return {};
  }

  PooledExperts& experts_;
  Statistics* statistics_;
  Pool& pool_;
  Wanted wanted_;
  std::deque<std::uint32_t> pending_;  // places not leased yet
  std::vector<Held> held_;             // leased, not given yet
  std::vector<Held> given_;
  std::vector<std::uint32_t> places_;
  std::vector<backend::ExpertEntry> entries_;
  std::vector<std::uint32_t> dropped_;
  std::vector<std::size_t> slots_;
};

Result<std::unique_ptr<PooledExperts>> PooledExperts::create(const Options& options, SlotSource source) {
  std::unique_ptr<PooledExperts> experts(new PooledExperts);
  experts->options_ = options;
  experts->lookahead_ = Lookahead(options.layers);
  Pool::Options pool;
  pool.slot_bytes = options.tiers.front().slot_bytes;
  for (const PooledTier& tier : options.tiers) {
    if (tier.slot_bytes > pool.slot_bytes) {
      return make_error(ErrorCode::kInvalidArgument, "records of {} B in slots of {} B", tier.slot_bytes,
                        pool.slot_bytes);
    }
    pool.tier_bytes.push_back(tier.slot_bytes);
  }
  pool.records = options.layers * options.experts;
  pool.slots = static_cast<std::size_t>(
      std::min(options.pool_bytes / pool.slot_bytes, static_cast<std::uint64_t>(pool.records)));
  pool.half_life = kHalfLife;
  pool.reader = options.reader;
  pool.ring = options.ring;
  pool.allocate = options.allocate;
  if (pool.slots < 2) {
    return make_error(ErrorCode::kInvalidArgument, "expert pool of {}: needed at least {}, two records",
                      format_size(options.pool_bytes), format_size(2 * pool.slot_bytes));
  }
  SLUICE_ASSIGN(experts->pool_, Pool::create(pool, std::move(source)));
  if (!experts->pool_->reader_note().empty()) experts->notice(experts->pool_->reader_note());
  experts->warm_up();
  return experts;
}

PooledExperts::~PooledExperts() {
  if (!pool_ || options_.heat_file.empty() || steps_ == 0) return;
  // A start without it is only colder.
  (void)write_heat(options_.heat_file, pool_->heat().relative(options_.layers * options_.experts));
}

void PooledExperts::warm_up() {
  const std::int64_t records = options_.layers * options_.experts;
  if (!options_.heat_file.empty()) {
    const auto kept = read_heat(options_.heat_file, static_cast<std::size_t>(records));
    if (kept.ok()) pool_->heat().resume(*kept);
  }
  warm_up_hottest(records);
  // Where a device has all behind it in host memory, no step need wait for the drive once they are there.
  if (!pool_->pinned() || pool_->slots() < static_cast<std::size_t>(records)) return;
  for (std::int64_t record = 0; record < records; ++record) {
    pool_->prefetch(record, kDecodeWeight, Pool::Why::kWarm);
  }
}

void PooledExperts::warm_up_hottest(std::int64_t records) {
  std::vector<std::int64_t> hottest;
  for (std::int64_t record = 0; record < records; ++record) {
    if (pool_->heat().of(record) > Heat::kNever) hottest.push_back(record);
  }
  std::sort(hottest.begin(), hottest.end(), [this](std::int64_t a, std::int64_t b) {
    const double heat_a = pool_->heat().of(a);
    const double heat_b = pool_->heat().of(b);
    return heat_a > heat_b || (heat_a == heat_b && a < b);
  });
  hottest.resize(std::min(hottest.size(), pool_->slots()));
  for (const std::int64_t record : hottest) pool_->prefetch(record, kDecodeWeight, Pool::Why::kWarm);
}

Result<std::unique_ptr<Visit>> PooledExperts::visit(const Wanted& wanted) {
  auto visit = std::make_unique<PoolVisit>(*this, wanted);
  SLUICE_TRY(visit->begin());
  return std::unique_ptr<Visit>(std::move(visit));
}

bool PooledExperts::wants_prediction(std::int64_t layer, Use use) {
  if (!options_.lookahead) return false;
  return use == Use::kPrefill || lookahead_.pays(layer, steps_);
}

void PooledExperts::predict(std::int64_t layer, std::span<const std::uint32_t> ids, Use use) {
  const std::size_t most = use == Use::kPrefill ? ring_of(*pool_) : pool_->slots() / 2;
  // Were it not read ahead, it would take the coldest record's place all the same, only later: so it may take
  // one that was touched once, however lately, and not one that decoding came back to.
  const double weight = use == Use::kPrefill ? kPrefillWeight : kPredictedWeight * lookahead_.useful(layer);
  std::size_t begun = 0;
  for (const std::uint32_t id : ids) {
    if (begun >= most) break;
    if (pool_->has(key(layer, id))) continue;
    if (!pool_->prefetch(key(layer, id), weight)) break;
    lookahead_.predicted(layer, id);
    ++begun;
  }
  if (statistics_ != nullptr) statistics_->predicted(layer, begun);
}

void PooledExperts::settle() {
  pool_->settle();
}

void PooledExperts::touched(std::int64_t layer, std::span<const std::uint32_t> ids, Use use) {
  for (const std::uint32_t id : ids) pool_->heat().touch(key(layer, id), weight_of(use));
}

void PooledExperts::end_step() {
  pool_->tick();
  ++steps_;
  if (options_.pressure && steps_ % kWatchEvery == 0) watch_memory();
}

void PooledExperts::watch_memory() {
  const std::uint64_t wanted = options_.pressure();
  if (wanted == 0) return;
  const std::uint64_t before = pool_->bytes();
  shrink(before - std::min(before, wanted));
  if (pool_->bytes() == before) return;
  notice(fmt::format("memory is short: expert pool reduced from {} to {}", format_size(before),
                     format_size(pool_->bytes())));
}

void PooledExperts::shrink(std::uint64_t bytes) {
  const std::size_t slots = static_cast<std::size_t>(bytes / options_.tiers.front().slot_bytes);
  pool_->shrink(std::max({slots, options_.least_slots, std::size_t{2}}));
}

ExpertCounts PooledExperts::counts() const {
  const PoolCounts& pool = pool_->counts();
  const ReaderCounts reader = pool_->reader().counts();
  ExpertCounts counts;
  counts.hits = pool.hits;
  counts.late = pool.late;
  counts.misses = pool.misses;
  counts.bytes_read = pool.bytes_read;
  counts.retries = reader.retries;
  counts.ahead = pool.ahead;
  counts.ahead_useful = pool.ahead_useful;
  counts.ahead_late = pool.ahead_late;
  counts.ahead_wasted = pool.ahead_wasted;
  counts.low_tier = low_tier_;
  counts.dropped = dropped_;
  counts.wait_seconds = waited_;
  counts.read_seconds = reader.busy_seconds;
  return counts;
}

}  // namespace sluice::experts
