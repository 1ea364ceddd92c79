// The file of a run's statistics: written whole, read with every number checked.
#include <cmath>
#include <initializer_list>

#include "base/file.h"
#include "experts/statistics.h"

namespace sluice::experts {
namespace {

constexpr std::string_view kFormat = "sluice-stats 1";
// Sums over all layers and phases of counts below this cannot overflow.
constexpr std::uint64_t kMostCount = std::uint64_t{1} << 50;
// Seconds: some thirty thousand years.
constexpr double kMostSeconds = 1e12;

constexpr std::string_view use_name(Use use) {
  return use == Use::kDecode ? "decode" : "prefill";
}

Json lookahead_json(const LayerCounts& c) {
  return {{"predicted", c.predicted}, {"useful", c.useful}, {"late", c.late_ahead}, {"wasted", c.wasted}};
}

Json layer_json(const LayerCounts& c) {
  return {{"hits", c.hits},
          {"late", c.late},
          {"misses", c.misses},
          {"bytes", c.bytes},
          {"wait_seconds", c.wait_seconds},
          {"lookahead", lookahead_json(c)},
          {"dropped", c.dropped},
          {"low_tier", c.low_tier}};
}

Json phase_json(const PhaseCounts& phase) {
  Json parts = Json::object();
  for (std::size_t i = 0; i < kParts; ++i) {
    parts[std::string(part_name(static_cast<Part>(i)))] = phase.parts[i];
  }
  Json layers = Json::array();
  for (const LayerCounts& layer : phase.layers) layers.push_back(layer_json(layer));
  return {{"steps", phase.steps},
          {"tokens", phase.tokens},
          {"seconds", phase.seconds},
          {"parts", std::move(parts)},
          {"per_layer", std::move(layers)}};
}

Json event_json(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kStep:
      return {{"kind", "step"},
              {"use", use_name(event.use)},
              {"rows", event.amount},
              {"begin", event.begin},
              {"end", event.end}};
    case Event::Kind::kRead:
      return {{"kind", "read"},        {"layer", event.layer}, {"expert", event.expert},
              {"bytes", event.amount}, {"begin", event.begin}, {"end", event.end}};
    case Event::Kind::kPart:
      break;
  }
  return {
      {"kind", part_name(event.part)}, {"layer", event.layer}, {"begin", event.begin}, {"end", event.end}};
}

Json table_json(const std::vector<std::uint64_t>& counts, std::size_t experts) {
  Json rows = Json::array();
  for (std::size_t at = 0; at < counts.size(); at += experts) {
    rows.push_back(std::vector<std::uint64_t>(counts.begin() + static_cast<std::ptrdiff_t>(at),
                                              counts.begin() + static_cast<std::ptrdiff_t>(at + experts)));
  }
  return rows;
}

/// A value somewhere in a file, with its name for messages. Values of the wrong kind are reported once, by
/// the first that asks.
class Field {
 public:
  Field(const Json* value, std::string name) : value_(value), name_(std::move(name)) {}

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] bool is_null() const { return value_ == nullptr || value_->is_null(); }

  [[nodiscard]] Field operator[](const char* key) const {
    const std::string name = name_ + "." + key;
    if (value_ == nullptr || !value_->is_object()) return {nullptr, name};
    const auto it = value_->find(key);
    return {it == value_->end() ? nullptr : &*it, name};
  }
  [[nodiscard]] Field item(std::size_t i) const { return {&(*value_)[i], fmt::format("{}[{}]", name_, i)}; }

  /// Items of an array: exactly `count`.
  [[nodiscard]] Result<void> array(std::size_t count) const {
    if (value_ != nullptr && value_->is_array() && value_->size() == count) return {};
    return bad(fmt::format("an array of {}", count));
  }
  [[nodiscard]] Result<std::size_t> array_up_to(std::size_t most) const {
    if (value_ != nullptr && value_->is_array() && value_->size() <= most) return value_->size();
    return bad(fmt::format("an array of at most {}", most)).error();
  }
  [[nodiscard]] Result<std::uint64_t> count(std::uint64_t most = kMostCount, std::uint64_t least = 0) const {
    if (value_ != nullptr && value_->is_number_integer()) {
      // What is negative is so large when taken without its sign that it is refused too.
      const auto number = value_->get<std::uint64_t>();
      if (number >= least && number <= most) return number;
    }
    return bad(fmt::format("a whole number from {} to {}", least, most)).error();
  }
  [[nodiscard]] Result<std::int32_t> index(std::int64_t least, std::int64_t below) const {
    if (value_ != nullptr && value_->is_number_integer()) {
      // Unsigned numbers beyond the signed ones come out negative and small enough to be refused.
      const bool huge = value_->is_number_unsigned() && value_->get<std::uint64_t>() > INT32_MAX;
      const auto number = value_->get<std::int64_t>();
      if (!huge && number >= least && number < below) return static_cast<std::int32_t>(number);
    }
    return bad(fmt::format("a whole number from {} to {}", least, below - 1)).error();
  }
  [[nodiscard]] Result<double> seconds(double most = kMostSeconds) const {
    if (value_ != nullptr && value_->is_number()) {
      const auto number = value_->get<double>();
      if (number >= 0 && number <= most) return number;
    }
    return bad(fmt::format("a number from 0 to {}", most)).error();
  }
  [[nodiscard]] Result<std::string> text() const {
    if (value_ != nullptr && value_->is_string()) return value_->get<std::string>();
    return bad("a text").error();
  }
  [[nodiscard]] Result<void> bad(std::string_view needed) const {
    std::string found = value_ == nullptr ? "nothing" : value_->type_name();
    if (value_ != nullptr && value_->is_primitive()) found = dump_json(*value_).substr(0, 40);
    if (value_ != nullptr && value_->is_array()) found = fmt::format("an array of {}", value_->size());
    return make_error(ErrorCode::kCorrupt, "{}: {} found, {} needed", name_, found, needed);
  }

 private:
  const Json* value_;
  std::string name_;
};

}  // namespace

/// Fills statistics from a file's fields.
class StatisticsReader {
 public:
  static Result<Statistics> read(const Field& root) {
    SLUICE_ASSIGN(const std::string format, root["format"].text());
    if (format != kFormat) return root["format"].bad(fmt::format("\"{}\"", kFormat)).error();
    Statistics::Shape shape;
    SLUICE_ASSIGN(const auto layers, root["layers"].count(Statistics::kMostLayers, 1));
    SLUICE_ASSIGN(const auto experts, root["experts"].count(Statistics::kMostExperts, 1));
    shape.layers = static_cast<std::int64_t>(layers);
    shape.experts = static_cast<std::int64_t>(experts);
    SLUICE_ASSIGN(shape.record_bytes, root["record_bytes"].count());
    SLUICE_ASSIGN(shape.pool_slots, root["pool_slots"].count());
    SLUICE_ASSIGN(shape.pool_bytes, root["pool_bytes"].count());
    SLUICE_ASSIGN(shape.reader, root["reader"].text());
    if (shape.reader != "io_uring" && shape.reader != "threads" && !shape.reader.empty()) {
      return root["reader"].bad("\"io_uring\", \"threads\" or \"\"").error();
    }
    DeviceCounts device_counts;
    if (const Field device = root["device"]; !device.is_null()) {
      for (const auto& [key, to] : Counts{{"slots", &shape.device_slots},
                                          {"bytes", &shape.device_bytes},
                                          {"hits", &device_counts.hits},
                                          {"in_place", &device_counts.in_place},
                                          {"copied", &device_counts.copied},
                                          {"bus_bytes", &device_counts.bus_bytes}}) {
        SLUICE_ASSIGN(*to, device[key].count());
      }
    }
    auto made = Statistics::create(std::move(shape));
    if (!made.ok()) return make_error(ErrorCode::kCorrupt, "{}: {}", root.name(), made.error().message);
    Statistics out = std::move(made).value();
    out.device_ = device_counts;
    SLUICE_TRY(read_phase(root["decode"], out.phases_[0]));
    SLUICE_TRY(read_phase(root["prefill"], out.phases_[1]));
    SLUICE_ASSIGN(out.retries_, root["totals"]["retries"].count());
    SLUICE_TRY(read_table(root["per_expert"]["hits"], experts, out.hits_));
    SLUICE_TRY(read_table(root["per_expert"]["misses"], experts, out.misses_));
    const Field changed = root["changed_results"];
    if (const Field bits = changed["miss_experts"]; !bits.is_null()) {
      SLUICE_ASSIGN(const auto value, bits.count(8, 1));
      out.miss_experts_ = static_cast<int>(value);
    }
    if (const Field weight = changed["cut_weak"]; !weight.is_null()) {
      SLUICE_ASSIGN(const double value, weight.seconds(1));
      out.cut_weak_ = value;
    }
    SLUICE_TRY(read_timeline(root["timeline"], out));
    return out;
  }

 private:
  using Counts = std::initializer_list<std::pair<const char*, std::uint64_t*>>;

  static Result<void> read_phase(const Field& from, PhaseCounts& phase) {
    SLUICE_ASSIGN(phase.steps, from["steps"].count());
    SLUICE_ASSIGN(phase.tokens, from["tokens"].count());
    SLUICE_ASSIGN(phase.seconds, from["seconds"].seconds());
    for (std::size_t i = 0; i < kParts; ++i) {
      const std::string name(part_name(static_cast<Part>(i)));
      SLUICE_ASSIGN(phase.parts[i], from["parts"][name.c_str()].seconds());
    }
    const Field layers = from["per_layer"];
    SLUICE_TRY(layers.array(phase.layers.size()));
    for (std::size_t i = 0; i < phase.layers.size(); ++i) {
      const Field layer = layers.item(i);
      LayerCounts& c = phase.layers[i];
      for (const auto& [key, to] : Counts{{"hits", &c.hits},
                                          {"late", &c.late},
                                          {"misses", &c.misses},
                                          {"bytes", &c.bytes},
                                          {"dropped", &c.dropped},
                                          {"low_tier", &c.low_tier}}) {
        SLUICE_ASSIGN(*to, layer[key].count());
      }
      SLUICE_ASSIGN(c.wait_seconds, layer["wait_seconds"].seconds());
      const Field ahead = layer["lookahead"];
      for (const auto& [key, to] : Counts{{"predicted", &c.predicted},
                                          {"useful", &c.useful},
                                          {"late", &c.late_ahead},
                                          {"wasted", &c.wasted}}) {
        SLUICE_ASSIGN(*to, ahead[key].count());
      }
    }
    return {};
  }

  static Result<void> read_table(const Field& from, std::size_t experts, std::vector<std::uint64_t>& to) {
    SLUICE_TRY(from.array(to.size() / experts));
    for (std::size_t layer = 0; layer < to.size() / experts; ++layer) {
      const Field row = from.item(layer);
      SLUICE_TRY(row.array(experts));
      for (std::size_t expert = 0; expert < experts; ++expert) {
        SLUICE_ASSIGN(to[layer * experts + expert], row.item(expert).count());
      }
    }
    return {};
  }

  static Result<void> read_timeline(const Field& from, Statistics& out) {
    if (from.is_null()) return {};
    SLUICE_ASSIGN(const std::size_t count, from.array_up_to(Statistics::kMostEvents));
    if (count == 0) return {};
    out.enable_timeline(count);
    for (std::size_t i = 0; i < count; ++i) {
      SLUICE_ASSIGN(const Event event, read_event(from.item(i), out.shape_));
      out.add(event);
    }
    return {};
  }

  static Result<Event> read_event(const Field& from, const Statistics::Shape& shape) {
    Event event;
    SLUICE_ASSIGN(const std::string kind, from["kind"].text());
    SLUICE_ASSIGN(event.begin, from["begin"].seconds());
    SLUICE_ASSIGN(event.end, from["end"].seconds());
    if (event.end < event.begin) return from["end"].bad("no less than begin").error();
    if (kind == "step") {
      event.kind = Event::Kind::kStep;
      SLUICE_ASSIGN(const std::string use, from["use"].text());
      if (use != use_name(Use::kDecode) && use != use_name(Use::kPrefill)) {
        return from["use"].bad("\"decode\" or \"prefill\"").error();
      }
      event.use = use == use_name(Use::kDecode) ? Use::kDecode : Use::kPrefill;
      SLUICE_ASSIGN(event.amount, from["rows"].count());
      return event;
    }
    SLUICE_ASSIGN(event.layer, from["layer"].index(-1, shape.layers));
    if (kind == "read") {
      event.kind = Event::Kind::kRead;
      SLUICE_ASSIGN(event.expert, from["expert"].index(-1, shape.experts));
      SLUICE_ASSIGN(event.amount, from["bytes"].count());
      return event;
    }
    const auto part = part_named(kind);
    if (!part) return from["kind"].bad("\"step\", \"read\" or the name of a part").error();
    event.part = *part;
    return event;
  }
};

Json Statistics::to_json() const {
  const LayerCounts all = totals();
  const auto experts = static_cast<std::size_t>(shape_.experts);
  Json per_layer = Json::array();
  for (std::int64_t i = 0; i < shape_.layers; ++i) per_layer.push_back(layer_json(layer(i)));
  Json events = Json::array();
  for (const Event& event : timeline()) events.push_back(event_json(event));
  Json out;
  out["format"] = kFormat;
  out["layers"] = shape_.layers;
  out["experts"] = shape_.experts;
  out["record_bytes"] = shape_.record_bytes;
  out["pool_slots"] = shape_.pool_slots;
  out["pool_bytes"] = shape_.pool_bytes;
  out["reader"] = shape_.reader;
  out["device"] = nullptr;
  if (shape_.device_slots > 0) {
    out["device"] = {{"slots", shape_.device_slots}, {"bytes", shape_.device_bytes},
                     {"hits", device_.hits},         {"in_place", device_.in_place},
                     {"copied", device_.copied},     {"bus_bytes", device_.bus_bytes}};
  }
  out["changed_results"] = {{"miss_experts", miss_experts_ ? Json(*miss_experts_) : Json()},
                            {"cut_weak", cut_weak_ ? Json(*cut_weak_) : Json()},
                            {"low_tier", all.low_tier},
                            {"dropped", all.dropped}};
  out["tokens"] = decode().tokens;
  out["prefill_tokens"] = prefill().tokens;
  out["seconds"] = decode().seconds + prefill().seconds;
  out["totals"] = {{"hits", all.hits},
                   {"late", all.late},
                   {"misses", all.misses},
                   {"bytes", all.bytes},
                   {"wait_seconds", all.wait_seconds},
                   {"retries", retries_},
                   {"lookahead", lookahead_json(all)}};
  out["decode"] = phase_json(decode());
  out["prefill"] = phase_json(prefill());
  out["per_layer"] = std::move(per_layer);
  out["per_expert"] = {{"hits", table_json(hits_, experts)}, {"misses", table_json(misses_, experts)}};
  out["timeline"] = std::move(events);
  return out;
}

Result<Statistics> Statistics::from_json(const Json& json, std::string_view what) {
  return StatisticsReader::read(Field(&json, std::string(what)));
}

Result<Statistics> read_statistics(const std::string& path) {
  SLUICE_ASSIGN(const std::string text, read_text_file(path, Statistics::kMostFile));
  SLUICE_ASSIGN(const Json json, parse_json(text, path));
  return Statistics::from_json(json, path);
}

}  // namespace sluice::experts
