#include "experts/device_tier.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "experts/statistics.h"

namespace sluice::experts {
namespace {

constexpr std::uint64_t kAlignment = 256;  // of a slot
/// Most slots that a prefill copies into at once, and computes with: so many it may take of what decoding
/// comes back to. Small pools give it a quarter.
constexpr std::size_t kRing = 64;

std::size_t ring_of(std::size_t slots) {
  return std::clamp<std::size_t>(slots / 4, 1, kRing);
}

}  // namespace

class DeviceTier::TierVisit final : public Visit {
 public:
  TierVisit(DeviceTier& tier, const Wanted& wanted) : tier_(tier), wanted_(wanted) {}
  ~TierVisit() override {
    // The host's records go with its visit.
    finish_reading();
    for (const Held* list : {&hits_, &copying_, &given_}) release(*list);
  }
  TierVisit(const TierVisit&) = delete;
  TierVisit& operator=(const TierVisit&) = delete;

  Result<void> begin() {
    std::vector<std::uint32_t> ids;
    for (std::uint32_t place = 0; place < wanted_.ids.size(); ++place) {
      const std::uint32_t id = wanted_.ids[place];
      const std::uint32_t slot = tier_.slot_of(tier_.record(wanted_.layer, id));
      if (slot == kNone) {
        rest_.push_back(place);
        rest_ids_.push_back(id);
        rest_weight_.push_back(wanted_.weight[place]);
        continue;
      }
      tier_.slots_[slot].held = true;
      tier_.touch(slot, wanted_.use);
      hits_.push_back({place, slot});
      ids.push_back(id);
      if (tier_.statistics_ != nullptr) tier_.statistics_->hit(wanted_.layer, id);
    }
    tier_.counts_.hits += ids.size();
    tier_.counts_.device_hits += ids.size();
    tier_.host_->touched(wanted_.layer, ids, wanted_.use);
    SLUICE_ASSIGN(host_, tier_.host_->visit({wanted_.layer, rest_ids_, rest_weight_, wanted_.use}));
    // Copies begin before anything is computed, so that they run beside it.
    return fetch(false);
  }

  Result<std::span<const std::uint32_t>> next(bool wait) override {
    // What was given has been issued: a copy into its slot would wait for that.
    release(given_);
    given_.clear();
    places_.clear();
    entries_.clear();
    while (true) {
      if (!hits_.empty() || !in_place_.empty()) {
        give(std::exchange(hits_, {}));
        for (const Place& one : std::exchange(in_place_, {})) give(one.place, one.entry);
        break;
      }
      if (!copying_.empty()) {
        // The device waits for copies, not the host: there may be something to issue before that.
        if (!wait) break;
        tier_.backend_.join_copies();
        give(std::exchange(copying_, {}));
        place_records();
        break;
      }
      if (!here_.empty()) {
        place_records();
        continue;
      }
      if (came_ + host_->dropped().size() == rest_.size()) break;
      if (reading_ && !wait) break;
      SLUICE_TRY(fetch(wait));
      if (here_.empty() && in_place_.empty() && copying_.empty()) break;
    }
    return std::span<const std::uint32_t>(places_);
  }

  [[nodiscard]] std::span<const backend::ExpertEntry> entries() const override { return entries_; }
  [[nodiscard]] bool all_started() const override { return host_->all_started(); }
  [[nodiscard]] bool asynchronous() const override { return true; }
  [[nodiscard]] std::span<const std::uint32_t> dropped() const override {
    dropped_.clear();
    for (const std::uint32_t place : host_->dropped()) dropped_.push_back(rest_[place]);
    return dropped_;
  }

 private:
  /// Places of the visit, each with its record in a slot that is held.
  using Held = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  /// A record that the host has.
  struct Place {
    std::uint32_t place = 0;
    backend::ExpertEntry entry;
  };

  void release(const Held& held) {
    for (const auto& [place, slot] : held) tier_.slots_[slot].held = false;
  }

  void give(std::uint32_t place, backend::ExpertEntry entry) {
    places_.push_back(place);
    entries_.push_back(entry);
  }
  void give(const Held& held) {
    for (const auto& [place, slot] : held) give(place, tier_.entry(slot));
    given_.insert(given_.end(), held.begin(), held.end());
  }

  /// The device is done with the host's records.
  void finish_reading() {
    if (!std::exchange(reading_, false)) return;
    tier_.backend_.synchronise();
  }

  /// The host's next records; those before are given back.
  Result<void> fetch(bool wait) {
    finish_reading();
    SLUICE_ASSIGN(const auto places, host_->next(wait));
    const auto entries = host_->entries();
    for (std::size_t i = 0; i < places.size(); ++i) here_.push_back({rest_[places[i]], entries[i]});
    came_ += places.size();
    place_records();
    return {};
  }

  /// Begins copies and chooses what is read in place; a prefill's records that find no slot for now stay in
  /// here_.
  void place_records() {
    const bool prefill = wanted_.use == Use::kPrefill;
    std::size_t room = here_.size();
    if (prefill) {
      const std::size_t taken = copying_.size() + given_.size();
      const std::size_t ring = ring_of(tier_.slots_.size());
      room = ring - std::min(ring, taken);
      // Halves in turn: one is copied into while there is computed with the other.
      room = std::min(room, std::max<std::size_t>(ring / 2, 1));
    }
    std::size_t done = 0;
    for (; done < here_.size() && copying_.size() < room; ++done) {
      const Place& one = here_[done];
      const std::uint32_t id = wanted_.ids[one.place];
      auto layout = tier_.options_.layout;
      // Another precision than the slots' is a stopgap.
      const bool fits = one.entry.format() == layout.format;
      const std::uint32_t slot = fits ? tier_.admit(tier_.record(wanted_.layer, id), wanted_.use) : kNone;
      layout.format = one.entry.format();
      const auto bytes = static_cast<std::size_t>(layout.bytes());
      tier_.counts_.bus_bytes += bytes;
      reading_ = true;
      if (slot == kNone) {
        in_place_.push_back(one);
        ++tier_.counts_.in_place;
        continue;
      }
      tier_.backend_.copy_beside(tier_.address(slot), one.entry.record(), bytes);
      copying_.push_back({one.place, slot});
      ++tier_.counts_.copied;
    }
    here_.erase(here_.begin(), here_.begin() + static_cast<std::ptrdiff_t>(done));
  }

  DeviceTier& tier_;
  Wanted wanted_;
  std::vector<std::uint32_t> rest_, rest_ids_;  // places, and their experts, that are in no slot
  std::vector<float> rest_weight_;
  std::unique_ptr<Visit> host_;
  std::size_t came_ = 0;         // of the rest, from the host
  std::vector<Place> here_;      // from the host, and not decided about
  std::vector<Place> in_place_;  // to be given
  Held hits_, copying_;          // to be given
  Held given_;                   // to the caller, since the last next()
  bool reading_ = false;         // the device may be at a record of the host
  std::vector<std::uint32_t> places_;
  std::vector<backend::ExpertEntry> entries_;
  mutable std::vector<std::uint32_t> dropped_;
};

DeviceTier::DeviceTier(const Options& options, backend::Backend& backend,
                       std::unique_ptr<ExpertProvider> host)
    : options_(options),
      backend_(backend),
      host_(std::move(host)),
      stride_(slot_bytes(options.layout)),
      slot_of_(static_cast<std::size_t>(options.layers * options.experts), kNone),
      last_touch_(slot_of_.size()) {}

std::uint64_t DeviceTier::slot_bytes(const spec::RecordLayout& layout) {
  return (static_cast<std::uint64_t>(layout.bytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

Result<std::unique_ptr<DeviceTier>> DeviceTier::create(const Options& options, backend::Backend& backend,
                                                       std::unique_ptr<ExpertProvider> host) {
  std::unique_ptr<DeviceTier> tier(new DeviceTier(options, backend, std::move(host)));
  const std::uint64_t count = std::min<std::uint64_t>(options.bytes / tier->stride_, tier->slot_of_.size());
  if (count == 0 && options.bytes > 0) {
    return make_error(ErrorCode::kInvalidArgument, "device pool of {}: needed at least {}, one record",
                      format_size(options.bytes), format_size(tier->stride_));
  }
  if (count > 0) {
    SLUICE_ASSIGN(tier->memory_, backend.allocate(static_cast<std::size_t>(count * tier->stride_)));
  }
  tier->slots_.resize(static_cast<std::size_t>(count));
  for (auto slot = static_cast<std::uint32_t>(count); slot > 0; --slot) tier->empty_.push_back(slot - 1);
  return tier;
}

void DeviceTier::record_to(Statistics* statistics) {
  ExpertProvider::record_to(statistics);
  host_->record_to(statistics);
}

Result<std::unique_ptr<Visit>> DeviceTier::visit(const Wanted& wanted) {
  ++visits_;
  auto visit = std::make_unique<TierVisit>(*this, wanted);
  SLUICE_TRY(visit->begin());
  return std::unique_ptr<Visit>(std::move(visit));
}

void DeviceTier::touch(std::uint32_t slot, Use use) {
  if (use == Use::kPrefill) return;
  const Slot& touched = slots_[slot];
  last_touch_[static_cast<std::size_t>(touched.record)] = visits_;
  order_.splice(order_.end(), order_, touched.at);
}

std::uint32_t DeviceTier::admit(std::int64_t record, Use use) {
  const bool decode = use == Use::kDecode;
  const std::uint64_t before = last_touch_[static_cast<std::size_t>(record)];
  if (decode) last_touch_[static_cast<std::size_t>(record)] = visits_;
  std::uint32_t number = kNone;
  if (!empty_.empty()) {
    number = empty_.back();
    empty_.pop_back();
  } else {
    const auto victim =
        std::find_if(order_.begin(), order_.end(), [this](std::uint32_t slot) { return !slots_[slot].held; });
    if (victim == order_.end()) return kNone;
    Slot& old = slots_[*victim];
    if (decode && options_.in_place && before <= last_touch_[static_cast<std::size_t>(old.record)]) {
      return kNone;
    }
    number = *victim;
    slot_of_[static_cast<std::size_t>(old.record)] = kNone;
    order_.erase(victim);
  }
  Slot& slot = slots_[number];
  slot.record = record;
  slot.held = true;
  slot.at = order_.insert(decode ? order_.end() : order_.begin(), number);
  slot_of_[static_cast<std::size_t>(record)] = number;
  return number;
}

void DeviceTier::predict(std::int64_t layer, std::span<const std::uint32_t> ids, Use use) {
  std::vector<std::uint32_t> rest;
  for (const std::uint32_t id : ids) {
    if (slot_of(record(layer, id)) == kNone) rest.push_back(id);
  }
  host_->predict(layer, rest, use);
}

void DeviceTier::end_step() {
  host_->end_step();
}

ExpertCounts DeviceTier::counts() const {
  ExpertCounts counts = host_->counts();
  counts.hits += counts_.hits;
  counts.device_hits = counts_.device_hits;
  counts.in_place = counts_.in_place;
  counts.copied = counts_.copied;
  counts.bus_bytes = counts_.bus_bytes;
  return counts;
}

}  // namespace sluice::experts
