#include "experts/statistics.h"

#include <algorithm>
#include <numeric>

namespace sluice::experts {
namespace {

constexpr std::array<std::string_view, kParts> kNames = {
    "ngram", "attention", "delta_net", "router", "resident_experts", "late_experts", "shared_expert",
    "wait",  "lookahead", "head",      "other"};

}  // namespace

std::string_view part_name(Part part) {
  return kNames[static_cast<std::size_t>(part)];
}

std::optional<Part> part_named(std::string_view name) {
  const auto it = std::find(kNames.begin(), kNames.end(), name);
  if (it == kNames.end()) return std::nullopt;
  return static_cast<Part>(it - kNames.begin());
}

double LayerCounts::hit_rate() const {
  return wanted() == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(wanted());
}

LayerCounts& LayerCounts::operator+=(const LayerCounts& other) {
  hits += other.hits;
  late += other.late;
  misses += other.misses;
  bytes += other.bytes;
  wait_seconds += other.wait_seconds;
  predicted += other.predicted;
  useful += other.useful;
  late_ahead += other.late_ahead;
  wasted += other.wasted;
  dropped += other.dropped;
  low_tier += other.low_tier;
  return *this;
}

LayerCounts PhaseCounts::sum() const {
  LayerCounts sum;
  for (const LayerCounts& layer : layers) sum += layer;
  return sum;
}

Statistics::Statistics(Shape shape) : shape_(std::move(shape)), start_(std::chrono::steady_clock::now()) {
  for (PhaseCounts& phase : phases_) phase.layers.resize(static_cast<std::size_t>(shape_.layers));
  hits_.resize(record(shape_.layers, 0));
  misses_.resize(hits_.size());
}

Result<Statistics> Statistics::create(Shape shape) {
  const auto outside = [](std::int64_t value, std::int64_t most) { return value < 1 || value > most; };
  if (outside(shape.layers, kMostLayers) || outside(shape.experts, kMostExperts) ||
      shape.layers * shape.experts > kMostRecords) {
    return make_error(ErrorCode::kInvalidArgument,
                      "statistics of {} layers of {} experts: needed 1 to {} of 1 to {}, at most {} records",
                      shape.layers, shape.experts, kMostLayers, kMostExperts, kMostRecords);
  }
  return Statistics(std::move(shape));
}

void Statistics::enable_timeline(std::size_t events) {
  capacity_ = std::clamp<std::size_t>(events, 1, kMostEvents);
  events_.clear();
  events_.reserve(capacity_);
  next_ = 0;
}

void Statistics::begin_step(std::int64_t rows, Use use) {
  phase_ = use == Use::kDecode ? 0 : 1;
  step_rows_ = rows;
  step_begin_ = now();
  step_parts_ = 0;
  in_step_ = true;
}

void Statistics::end_step() {
  if (!in_step_) return;
  in_step_ = false;
  const double end = now();
  const double seconds = end - step_begin_;
  PhaseCounts& phase = phases_[phase_];
  ++phase.steps;
  phase.tokens += static_cast<std::uint64_t>(step_rows_);
  phase.seconds += seconds;
  phase.parts[static_cast<std::size_t>(Part::kOther)] += std::max(0.0, seconds - step_parts_);
  if (!has_timeline()) return;
  Event event;
  event.kind = Event::Kind::kStep;
  event.use = phase_ == 0 ? Use::kDecode : Use::kPrefill;
  event.amount = static_cast<std::uint64_t>(step_rows_);
  event.begin = step_begin_;
  event.end = end;
  add(event);
}

void Statistics::spent(Part part, std::int64_t layer, double begin, double end) {
  const double seconds = end - begin;
  phases_[phase_].parts[static_cast<std::size_t>(part)] += seconds;
  step_parts_ += seconds;
  if (part == Part::kWait && layer >= 0) at(layer).wait_seconds += seconds;
  if (!has_timeline()) return;
  Event event;
  event.part = part;
  event.layer = static_cast<std::int32_t>(layer);
  event.begin = begin;
  event.end = end;
  add(event);
}

void Statistics::waited(std::int64_t layer, double seconds) {
  const double end = now();
  spent(Part::kWait, layer, end - seconds, end);
}

void Statistics::read(std::int64_t layer, std::int64_t expert, std::uint64_t bytes, double begin,
                      double end) {
  if (!has_timeline()) return;
  Event event;
  event.kind = Event::Kind::kRead;
  event.layer = static_cast<std::int32_t>(layer);
  event.expert = static_cast<std::int32_t>(expert);
  event.amount = bytes;
  event.begin = begin;
  event.end = end;
  add(event);
}

void Statistics::add(const Event& event) {
  if (events_.size() < capacity_) {
    events_.push_back(event);
    return;
  }
  events_[next_] = event;
  next_ = (next_ + 1) % capacity_;
}

LayerCounts Statistics::layer(std::int64_t layer) const {
  LayerCounts sum;
  for (const PhaseCounts& phase : phases_) sum += phase.layers[static_cast<std::size_t>(layer)];
  return sum;
}

LayerCounts Statistics::totals() const {
  LayerCounts sum = phases_[0].sum();
  return sum += phases_[1].sum();
}

std::vector<Event> Statistics::timeline() const {
  std::vector<Event> out(events_);
  std::rotate(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(next_), out.end());
  return out;
}

}  // namespace sluice::experts
