#include "experts/route_trace.h"

#include <algorithm>
#include <charconv>

#include "base/file.h"

namespace sluice::experts {
namespace {

constexpr std::string_view kName = "sluice-routes 1 ";
constexpr std::uint64_t kMostFile = std::uint64_t{128} << 20;
constexpr std::int64_t kMostLayers = 1024;
constexpr std::int64_t kMostExperts = 4096;
constexpr std::int64_t kMostRecords = std::int64_t{1} << 20;
constexpr std::uint64_t kMostRows = std::uint64_t{1} << 20;  // of a step
constexpr std::size_t kFlush = std::size_t{64} << 10;

/// Words of a line, apart by one blank each.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line), done_(line.empty()) {}

  [[nodiscard]] bool done() const { return done_; }
  std::string_view next() {
    const std::size_t end = rest_.find(' ');
    const std::string_view word = rest_.substr(0, end);
    done_ = end == std::string_view::npos;
    rest_ = done_ ? std::string_view{} : rest_.substr(end + 1);
    return word;
  }

 private:
  std::string_view rest_;
  bool done_;
};

/// A whole number and nothing else.
std::optional<std::uint64_t> number(std::string_view word) {
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || status != std::errc{} || end != word.data() + word.size()) return std::nullopt;
  return value;
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view name) : rest_(text), name_(name) {}

  Result<RouteTrace> parse() {
    SLUICE_TRY(header(next_line()));
    while (!rest_.empty()) {
      const std::string_view line = next_line();
      const bool digit = !line.empty() && line[0] >= '0' && line[0] <= '9';
      SLUICE_TRY(digit ? layer(line) : step(line));
    }
    return std::move(trace_);
  }

 private:
  std::string_view next_line() {
    ++line_;
    const std::size_t end = rest_.find('\n');
    const std::string_view line = rest_.substr(0, end);
    rest_ = end == std::string_view::npos ? std::string_view{} : rest_.substr(end + 1);
    return line;
  }

  [[nodiscard]] Error bad(std::string_view what, std::string_view found, std::string_view needed) const {
    return make_error(ErrorCode::kCorrupt, "{}: line {}: {} '{}' found, {} needed", name_, line_, what,
                      found.substr(0, 40), needed);
  }

  Result<void> header(std::string_view line) {
    if (line.substr(0, kName.size()) != kName) {
      return bad("header", line, fmt::format("'{}...'", kName));
    }
    Words words(line.substr(kName.size()));
    RouteShape& shape = trace_.shape;
    const auto field = [&](std::string_view key, std::uint64_t least,
                           std::uint64_t most) -> Result<std::uint64_t> {
      const std::string_view found = words.done() ? std::string_view{} : words.next();
      if (found != key) return bad("field", found, key);
      const std::string_view word = words.done() ? std::string_view{} : words.next();
      const auto value = number(word);
      if (!value || *value < least || *value > most) {
        return bad(key, word, fmt::format("a whole number from {} to {}", least, most));
      }
      return *value;
    };
    SLUICE_ASSIGN(const auto layers, field("layers", 1, kMostLayers));
    SLUICE_ASSIGN(const auto experts, field("experts", 1, kMostExperts));
    SLUICE_ASSIGN(const auto top, field("top", 1, experts));
    SLUICE_ASSIGN(shape.record_bytes, field("record_bytes", 0, std::uint64_t{1} << 40));
    if (!words.done()) return bad("word", words.next(), "the end of the line");
    if (layers * experts > kMostRecords) {
      return bad("records", fmt::format("{}", layers * experts), fmt::format("at most {}", kMostRecords));
    }
    shape.layers = static_cast<std::int64_t>(layers);
    shape.experts = static_cast<std::int64_t>(experts);
    shape.top = static_cast<std::int64_t>(top);
    return {};
  }

  Result<void> step(std::string_view line) {
    Words words(line);
    const std::string_view use = words.done() ? std::string_view{} : words.next();
    if (use != "decode" && use != "prefill") return bad("line", line, "decode, prefill or a layer's number");
    const std::string_view word = words.done() ? std::string_view{} : words.next();
    const auto rows = number(word);
    if (!rows || *rows < 1 || *rows > kMostRows || !words.done()) {
      return bad("rows", word, fmt::format("a number from 1 to {} alone", kMostRows));
    }
    trace_.begin_step(use == "decode" ? Use::kDecode : Use::kPrefill, static_cast<std::uint32_t>(*rows));
    last_layer_ = -1;
    return {};
  }

  Result<void> layer(std::string_view line) {
    if (trace_.steps.empty()) return bad("line", line, "decode or prefill before the first layer");
    Words words(line);
    const std::string_view first = words.next();
    const auto index = number(first);
    if (!index || static_cast<std::int64_t>(std::min<std::uint64_t>(*index, kMostLayers)) <= last_layer_ ||
        *index >= static_cast<std::uint64_t>(trace_.shape.layers)) {
      return bad("layer", first, fmt::format("{} to {}", last_layer_ + 1, trace_.shape.layers - 1));
    }
    last_layer_ = static_cast<std::int64_t>(*index);
    trace_.begin_layer(static_cast<std::uint32_t>(*index));
    const std::uint64_t step_rows = trace_.steps.back().rows;
    std::int64_t last_id = -1;
    std::uint64_t chosen = 0;
    while (!words.done()) {
      const std::string_view word = words.next();
      const std::size_t star = word.find('*');
      const auto id = number(word.substr(0, star));
      const auto rows =
          star == std::string_view::npos ? std::optional<std::uint64_t>(1) : number(word.substr(star + 1));
      if (!id || *id >= static_cast<std::uint64_t>(trace_.shape.experts) ||
          static_cast<std::int64_t>(*id) <= last_id) {
        return bad("expert", word, fmt::format("ids from {} to {}", last_id + 1, trace_.shape.experts - 1));
      }
      if (!rows || *rows < 1 || *rows > step_rows) {
        return bad("expert", word, fmt::format("1 to {} rows", step_rows));
      }
      last_id = static_cast<std::int64_t>(*id);
      chosen += *rows;
      trace_.ids.push_back(static_cast<std::uint32_t>(*id));
      trace_.rows.push_back(static_cast<std::uint32_t>(*rows));
    }
    if (chosen > step_rows * static_cast<std::uint64_t>(trace_.shape.top)) {
      return bad("choices", fmt::format("{}", chosen),
                 fmt::format("at most {} of each of {} rows", trace_.shape.top, step_rows));
    }
    if (trace_.ids.size() > RouteTrace::kMostIds) {
      return make_error(ErrorCode::kLimit, "{}: line {}: more than {} choices", name_, line_,
                        RouteTrace::kMostIds);
    }
    return {};
  }

  std::string_view rest_;
  std::string_view name_;
  RouteTrace trace_;
  std::size_t line_ = 0;
  std::int64_t last_layer_ = -1;
};

}  // namespace

std::span<const RouteTrace::Layer> RouteTrace::layers_of(std::size_t step) const {
  const std::size_t end = step + 1 < steps.size() ? steps[step + 1].first_layer : layers.size();
  return std::span(layers).subspan(steps[step].first_layer, end - steps[step].first_layer);
}

std::span<const std::uint32_t> RouteTrace::ids_of(std::size_t i) const {
  const std::size_t end = i + 1 < layers.size() ? layers[i + 1].first_id : ids.size();
  return std::span(ids).subspan(layers[i].first_id, end - layers[i].first_id);
}

std::uint64_t RouteTrace::tokens(Use use) const {
  std::uint64_t sum = 0;
  for (const Step& step : steps) sum += step.use == use ? step.rows : 0;
  return sum;
}

bool RouteTrace::append(const RouteTrace& other) {
  if (!(shape == other.shape) || ids.size() + other.ids.size() > kMostIds) return false;
  const auto layers_before = static_cast<std::uint32_t>(layers.size());
  const auto ids_before = static_cast<std::uint32_t>(ids.size());
  for (Step step : other.steps) {
    step.first_layer += layers_before;
    steps.push_back(step);
  }
  for (Layer layer : other.layers) {
    layer.first_id += ids_before;
    layers.push_back(layer);
  }
  ids.insert(ids.end(), other.ids.begin(), other.ids.end());
  rows.insert(rows.end(), other.rows.begin(), other.rows.end());
  return true;
}

Result<RouteTrace> parse_route_trace(std::string_view text, std::string_view name) {
  return Parser(text, name).parse();
}

Result<RouteTrace> read_route_trace(const std::filesystem::path& path) {
  SLUICE_ASSIGN(const std::string text, read_text_file(path, kMostFile));
  return parse_route_trace(text, path.string());
}

Result<std::unique_ptr<RouteWriter>> RouteWriter::create(const std::filesystem::path& path,
                                                         const RouteShape& shape) {
  if (shape.layers < 1 || shape.layers > kMostLayers || shape.experts < 1 || shape.experts > kMostExperts ||
      shape.layers * shape.experts > kMostRecords || shape.top < 1 || shape.top > shape.experts) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "routes of {} layers of {} experts, top {}: needed 1 to {} of 1 to {}, at most {} records",
        shape.layers, shape.experts, shape.top, kMostLayers, kMostExperts, kMostRecords);
  }
  std::unique_ptr<RouteWriter> writer(new RouteWriter(path, shape));
  SLUICE_TRY(writer->file_.create());
  writer->text_ = fmt::format("{}layers {} experts {} top {} record_bytes {}\n", kName, shape.layers,
                              shape.experts, shape.top, shape.record_bytes);
  return writer;
}

Result<void> RouteWriter::layer(std::int64_t layer, std::int64_t step_rows, Use use, bool first,
                                std::span<const std::uint32_t> ids, std::span<const std::uint32_t> rows) {
  if (first) {
    end_layer();
    if (layer <= layer_ || layer_ < 0) {
      text_ += fmt::format("{} {}\n", use == Use::kDecode ? "decode" : "prefill", step_rows);
    }
    layer_ = layer;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) choices_.push_back({ids[i], rows[i]});
  return flush(kFlush);
}

void RouteWriter::end_layer() {
  if (choices_.empty()) return;
  std::sort(choices_.begin(), choices_.end(), [](const Choice& a, const Choice& b) { return a.id < b.id; });
  text_ += fmt::format("{}", layer_);
  for (const Choice& choice : choices_) {
    text_ += fmt::format(" {}", choice.id);
    if (choice.rows != 1) text_ += fmt::format("*{}", choice.rows);
  }
  text_ += '\n';
  choices_.clear();
}

Result<void> RouteWriter::flush(std::size_t at_least) {
  if (text_.size() < at_least) return {};
  SLUICE_TRY(file_.write(std::as_bytes(std::span(text_))));
  text_.clear();
  return {};
}

Result<void> RouteWriter::finish() {
  end_layer();
  SLUICE_TRY(flush(0));
  return file_.commit();
}

}  // namespace sluice::experts
