// What a run did with its expert records and its time: counters that are always on, and a time line on
// demand.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "experts/expert_provider.h"

namespace sluice::experts {

/// What a step's time goes into. Parts do not overlap.
enum class Part : std::uint8_t {
  kNgram,            // n-gram rows and their embedding
  kAttention,        // with its projections
  kDeltaNet,         // with its projections
  kRouter,           // choosing and regrouping
  kResidentExperts,  // records that were in memory
  kLateExperts,      // records that had to be read
  kSharedExpert,
  kWait,       // for reads, with nothing left to compute
  kLookahead,  // choosing and ordering reads for the next layer
  kHead,       // final mixer, logits, draft head
  kOther,      // the rest of the step
};
constexpr std::size_t kParts = 11;
/// "ngram", "attention", ...: as in files.
std::string_view part_name(Part part);
std::optional<Part> part_named(std::string_view name);

/// Counts of one record layer, or sums of several.
struct LayerCounts {
  std::uint64_t hits = 0;        // wanted and in memory
  std::uint64_t late = 0;        // wanted and being read ahead already
  std::uint64_t misses = 0;      // wanted and read only then
  std::uint64_t bytes = 0;       // read for misses and ahead
  double wait_seconds = 0;       // for reads, with nothing left to compute
  std::uint64_t predicted = 0;   // records that the lookahead named
  std::uint64_t useful = 0;      // of its reads: wanted, and there by then
  std::uint64_t late_ahead = 0;  // of its reads: wanted, and not yet there
  std::uint64_t wasted = 0;      // of its reads: not wanted
  std::uint64_t dropped = 0;     // weak choices that were not computed (cut_weak)
  std::uint64_t low_tier = 0;    // misses computed with low bits (miss_experts)

  [[nodiscard]] std::uint64_t wanted() const { return hits + late + misses; }
  /// Of the wanted records, those that were in memory; 0 where none were wanted.
  [[nodiscard]] double hit_rate() const;
  LayerCounts& operator+=(const LayerCounts& other);
};

/// What belongs to decoding, or to prefill.
struct PhaseCounts {
  std::uint64_t steps = 0;
  std::uint64_t tokens = 0;  // rows of these steps
  double seconds = 0;        // in these steps
  std::array<double, kParts> parts{};
  std::vector<LayerCounts> layers;

  [[nodiscard]] LayerCounts sum() const;
};

/// Of a device that has some of the records in its own memory, for the rest of the time.
struct DeviceCounts {
  std::uint64_t hits = 0;      // wanted and in the device's memory; the layers' hits count them too
  std::uint64_t in_place = 0;  // computed with where the host's memory has them
  std::uint64_t copied = 0;    // from there to the device
  std::uint64_t bus_bytes = 0;
};

/// One bar of the time line; times are seconds since the statistics began.
struct Event {
  enum class Kind : std::uint8_t { kPart, kRead, kStep };
  Kind kind = Kind::kPart;
  Part part = Part::kOther;  // of a part
  Use use = Use::kDecode;    // of a step
  std::int32_t layer = -1;   // of a part or a read; -1: of none
  std::int32_t expert = -1;  // of a read
  std::uint64_t amount = 0;  // bytes of a read, rows of a step
  double begin = 0;
  double end = 0;
};

/// Belongs to one thread. Its memory is given by the shape; with a time line, by that one's length too.
class Statistics {
 public:
  struct Shape {
    std::int64_t layers = 0;   // record layers, the draft head's included
    std::int64_t experts = 0;  // of a layer
    std::uint64_t record_bytes = 0;
    std::uint64_t pool_slots = 0;  // 0: every record is kept in memory
    std::uint64_t pool_bytes = 0;
    std::string reader;              // "io_uring", "threads", or empty: nothing is read
    std::uint64_t device_slots = 0;  // of a device, before the pool; 0: there are none
    std::uint64_t device_bytes = 0;
  };
  static constexpr std::int64_t kMostLayers = 1024;
  static constexpr std::int64_t kMostExperts = 4096;
  static constexpr std::int64_t kMostRecords = std::int64_t{1} << 20;
  static constexpr std::size_t kMostEvents = std::size_t{1} << 17;
  static constexpr std::uint64_t kMostFile = std::uint64_t{32} << 20;

  /// Error: a shape outside the bounds above (kInvalidArgument).
  static Result<Statistics> create(Shape shape);

  /// Keeps the last `events` bars from now on, at most kMostEvents.
  void enable_timeline(std::size_t events = std::size_t{1} << 15);
  [[nodiscard]] bool has_timeline() const { return capacity_ > 0; }
  /// Options under which results differ from what the model says.
  void set_miss_experts(int bits) { miss_experts_ = bits; }
  void set_cut_weak(double weight) { cut_weak_ = weight; }

  /// Seconds since construction.
  [[nodiscard]] double now() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  /// A step begins; everything until its end counts for its use. One that fails is begun and never ended, and
  /// its rows and time do not count.
  void begin_step(std::int64_t rows, Use use);
  void end_step();

  void hit(std::int64_t layer, std::int64_t expert) {
    ++at(layer).hits;
    ++hits_[record(layer, expert)];
  }
  /// Wanted while it is being read ahead.
  void late(std::int64_t layer, std::int64_t expert) {
    ++at(layer).late;
    ++hits_[record(layer, expert)];
  }
  void miss(std::int64_t layer, std::int64_t expert, std::uint64_t bytes) {
    LayerCounts& counts = at(layer);
    ++counts.misses;
    counts.bytes += bytes;
    ++misses_[record(layer, expert)];
  }
  void read_ahead(std::int64_t layer, std::uint64_t bytes) { at(layer).bytes += bytes; }
  void predicted(std::int64_t layer, std::uint64_t n) { at(layer).predicted += n; }
  void predicted_useful(std::int64_t layer, std::uint64_t n) { at(layer).useful += n; }
  void predicted_late(std::int64_t layer, std::uint64_t n) { at(layer).late_ahead += n; }
  void predicted_wasted(std::int64_t layer, std::uint64_t n) { at(layer).wasted += n; }
  void dropped(std::int64_t layer) { ++at(layer).dropped; }
  void low_tier(std::int64_t layer) { ++at(layer).low_tier; }
  /// Reads tried again, in all.
  void set_retries(std::uint64_t retries) { retries_ = retries; }
  /// Since the start.
  void set_device(const DeviceCounts& device) { device_ = device; }

  /// Time of a part; a wait counts for its layer too. `layer` -1: of none.
  void spent(Part part, std::int64_t layer, double begin, double end);
  void waited(std::int64_t layer, double seconds);
  /// A read that has ended, for the time line alone: times as of now().
  void read(std::int64_t layer, std::int64_t expert, std::uint64_t bytes, double begin, double end);

  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] const PhaseCounts& decode() const { return phases_[0]; }
  [[nodiscard]] const PhaseCounts& prefill() const { return phases_[1]; }
  /// Both phases together.
  [[nodiscard]] LayerCounts layer(std::int64_t layer) const;
  [[nodiscard]] LayerCounts totals() const;
  /// Times that an expert was wanted and there (or on its way), and wanted and not there.
  [[nodiscard]] std::uint64_t hits(std::int64_t layer, std::int64_t expert) const {
    return hits_[record(layer, expert)];
  }
  [[nodiscard]] std::uint64_t misses(std::int64_t layer, std::int64_t expert) const {
    return misses_[record(layer, expert)];
  }
  [[nodiscard]] std::uint64_t retries() const { return retries_; }
  [[nodiscard]] const DeviceCounts& device() const { return device_; }
  [[nodiscard]] std::optional<int> miss_experts() const { return miss_experts_; }
  [[nodiscard]] std::optional<double> cut_weak() const { return cut_weak_; }
  [[nodiscard]] bool changes_results() const { return miss_experts_ || cut_weak_; }
  /// Oldest first, in the order in which they ended.
  [[nodiscard]] std::vector<Event> timeline() const;

  /// The file's form (docs/statistics.md).
  [[nodiscard]] Json to_json() const;
  /// Errors name `what` and the field.
  static Result<Statistics> from_json(const Json& json, std::string_view what);

 private:
  explicit Statistics(Shape shape);
  [[nodiscard]] LayerCounts& at(std::int64_t layer) {
    return phases_[phase_].layers[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] std::size_t record(std::int64_t layer, std::int64_t expert) const {
    return static_cast<std::size_t>(layer * shape_.experts + expert);
  }
  void add(const Event& event);
  friend class StatisticsReader;

  Shape shape_;
  std::chrono::steady_clock::time_point start_;
  std::array<PhaseCounts, 2> phases_;         // decode, prefill
  std::vector<std::uint64_t> hits_, misses_;  // [layers][experts]
  std::uint64_t retries_ = 0;
  DeviceCounts device_;
  std::optional<int> miss_experts_;
  std::optional<double> cut_weak_;

  std::size_t phase_ = 0;
  std::int64_t step_rows_ = 0;
  double step_begin_ = 0;
  double step_parts_ = 0;  // seconds of its parts so far
  bool in_step_ = false;

  std::vector<Event> events_;  // a ring
  std::size_t capacity_ = 0;
  std::size_t next_ = 0;  // where the next one goes once the ring is full
};

/// Times a part from here to the end of the scope; with no statistics it does nothing.
class PartTimer {
 public:
  PartTimer(Statistics* statistics, Part part, std::int64_t layer = -1)
      : statistics_(statistics), part_(part), layer_(layer), begin_(statistics ? statistics->now() : 0) {}
  ~PartTimer() {
    if (statistics_) statistics_->spent(part_, layer_, begin_, statistics_->now());
  }
  PartTimer(const PartTimer&) = delete;
  PartTimer& operator=(const PartTimer&) = delete;

 private:
  Statistics* statistics_;
  Part part_;
  std::int64_t layer_;
  double begin_;
};

/// Reads a file that a run wrote.
Result<Statistics> read_statistics(const std::string& path);

}  // namespace sluice::experts
