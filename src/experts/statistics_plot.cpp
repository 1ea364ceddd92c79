#include "experts/statistics_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/units.h"
#include "experts/statistics_report.h"

namespace sluice::experts {
namespace {

// All lengths are in units of the picture, as wide as a page.
constexpr double kWidth = 1200;
constexpr double kLeft = 90;
constexpr double kInner = 1080;  // width of lanes and map
constexpr double kLane = 24;
constexpr double kReadRow = 8;
constexpr std::size_t kReadRows = 16;
constexpr std::size_t kSteps = 3;         // of the time line that are shown
constexpr std::size_t kMostBars = 20000;  // the latest ones
constexpr int kLevels = 10;               // of heat, above none

/// Of the parts, in their order: middle tones that stand out from white and black alike.
constexpr std::array<std::string_view, kParts> kPartColours = {"#8d6e63", "#4c78a8", "#3a9e9e", "#b279a2",
                                                               "#54a24b", "#e0852f", "#9fae3c", "#d9534f",
                                                               "#c9a227", "#7b6fd0", "#9a9a9a"};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

/// From a pale yellow over orange and purple to a deep blue, in equal steps.
std::string heat_colour(int level) {
  struct Stop {
    double red, green, blue;
  };
  constexpr std::array<Stop, 5> kStops = {
      {{246, 222, 140}, {240, 158, 80}, {205, 84, 92}, {130, 50, 125}, {52, 34, 122}}};
  const double at = static_cast<double>(level - 1) / (kLevels - 1) * (kStops.size() - 1);
  const auto low = std::min(static_cast<std::size_t>(at), kStops.size() - 2);
  const double t = at - static_cast<double>(low);
  const auto mix = [t](double a, double b) { return static_cast<int>(std::lround(a + t * (b - a))); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(kStops[low].red, kStops[low + 1].red),
                     mix(kStops[low].green, kStops[low + 1].green),
                     mix(kStops[low].blue, kStops[low + 1].blue));
}

class Picture {
 public:
  void text(double x, double y, std::string_view words, std::string_view more = "") {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}{}>{}</text>\n", x, y, more.empty() ? "" : " ",
                         more, escaped(words));
  }
  void rect(double x, double y, double width, double height, std::string_view kind,
            std::string_view title = "") {
    body_ += fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" class=\"{}\"", x,
                         y, width, height, kind);
    body_ += title.empty() ? "/>\n" : fmt::format("><title>{}</title></rect>\n", escaped(title));
  }
  void path(std::string_view kind, std::string_view data) {
    body_ += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", kind, data);
  }
  void style(std::string_view rule) { style_ += fmt::format("{}\n", rule); }

  [[nodiscard]] std::string finish(double height) const {
    return fmt::format(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" "
        "height=\"{:.0f}\" role=\"img\">\n<title>Expert statistics</title>\n<style>\n{}</style>\n"
        "<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n{}</svg>\n",
        kWidth, height, kWidth, height, style_, body_);
  }

 private:
  std::string style_, body_;
};

void add_styles(Picture& picture) {
  picture.style("text { font: 12px system-ui, sans-serif; fill: #222; }");
  picture.style(".back { fill: #fff; } .lane, .h0 { fill: #eee; } .edge { fill: #222; }");
  picture.style(".head { font-size: 15px; font-weight: 600; } .warn { fill: #b3261e; font-weight: 600; }");
  picture.style("@media (prefers-color-scheme: dark) {");
  picture.style("text { fill: #ddd; } .back { fill: #16181c; } .lane, .h0 { fill: #2b2e35; }");
  picture.style(".edge { fill: #ddd; } .warn { fill: #ff8a80; } }");
  for (std::size_t i = 0; i < kParts; ++i) {
    picture.style(fmt::format(".p{} {{ fill: {}; }}", i, kPartColours[i]));
  }
  picture.style(".read { fill: #4c78a8; }");
  for (int level = 1; level <= kLevels; ++level) {
    picture.style(fmt::format(".h{} {{ fill: {}; }}", level, heat_colour(level)));
  }
}

/// What of the time line is drawn: the last few steps, of decoding where there are such.
struct Window {
  double begin = 0;
  double end = 0;
  std::vector<Event> steps;
};

Window choose_window(const std::vector<Event>& events) {
  Window window;
  if (events.empty()) return window;
  // A step whose first bars the ring has dropped is not shown.
  double oldest = std::numeric_limits<double>::infinity();
  for (const Event& event : events) {
    if (event.kind == Event::Kind::kPart) oldest = std::min(oldest, event.begin);
  }
  for (const Use use : {Use::kDecode, Use::kPrefill}) {
    for (const Event& event : events) {
      if (event.kind != Event::Kind::kStep || event.use != use) continue;
      if (std::isfinite(oldest) && event.end <= oldest) continue;
      window.steps.push_back(event);
    }
    if (!window.steps.empty()) break;
  }
  if (window.steps.empty()) {
    window.begin = events.front().begin;
    window.end = events.front().end;
    for (const Event& event : events) {
      window.begin = std::min(window.begin, event.begin);
      window.end = std::max(window.end, event.end);
    }
    return window;
  }
  const std::size_t most = window.steps.front().use == Use::kDecode ? kSteps : 1;
  if (window.steps.size() > most) {
    window.steps.erase(window.steps.begin(), window.steps.end() - static_cast<std::ptrdiff_t>(most));
  }
  window.begin = window.steps.front().begin;
  window.end = window.begin;
  for (const Event& step : window.steps) {
    window.begin = std::min(window.begin, step.begin);
    window.end = std::max(window.end, step.end);
  }
  return window;
}

std::string duration(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", 1e6 * seconds);
  if (seconds < 1) return fmt::format("{:.2f} ms", 1e3 * seconds);
  return fmt::format("{:.2f} s", seconds);
}

/// The lanes; returns where the next thing may be drawn.
double draw_timeline(Picture& picture, const Statistics& statistics, double y) {
  const std::vector<Event> events = statistics.timeline();
  const Window window = choose_window(events);
  const double span = window.end - window.begin;
  if (!(span > 0)) {
    picture.text(kLeft, y, "No time line was recorded.");
    return y + 24;
  }
  std::vector<Event> bars;
  for (const Event& event : events) {
    if (event.kind != Event::Kind::kStep && event.end >= window.begin && event.begin <= window.end) {
      bars.push_back(event);
    }
  }
  if (bars.size() > kMostBars) {
    bars.erase(bars.begin(), bars.end() - static_cast<std::ptrdiff_t>(kMostBars));
  }
  std::sort(bars.begin(), bars.end(), [](const Event& a, const Event& b) { return a.begin < b.begin; });

  const auto place = [&](double time) {
    return kLeft + kInner * std::clamp((time - window.begin) / span, 0.0, 1.0);
  };
  const double compute = y;
  const double wait = compute + kLane + 8;
  const double read = wait + kLane + 8;
  const double read_height = kReadRow * kReadRows;
  picture.text(8, compute + 16, "compute");
  picture.text(8, wait + 16, "wait");
  picture.text(8, read + 16, "reads");
  picture.rect(kLeft, compute, kInner, kLane, "lane");
  picture.rect(kLeft, wait, kInner, kLane, "lane");
  picture.rect(kLeft, read, kInner, read_height, "lane");

  std::array<bool, kParts> seen{};
  std::array<double, kReadRows> free{};
  free.fill(window.begin);
  for (const Event& bar : bars) {
    const double x = place(bar.begin);
    const double width = std::max(0.3, place(bar.end) - x);
    const std::string time = duration(bar.end - bar.begin);
    if (bar.kind == Event::Kind::kRead) {
      // The first row that is free by then; reads beyond the rows lie over one another in the last.
      const auto row =
          std::min(static_cast<std::size_t>(std::find_if(free.begin(), free.end(),
                                                         [&](double until) { return until <= bar.begin; }) -
                                            free.begin()),
                   kReadRows - 1);
      free[row] = std::max(free[row], bar.end);
      picture.rect(
          x, read + kReadRow * static_cast<double>(row), width, kReadRow - 1, "read",
          fmt::format("layer {} expert {}, {}, {}", bar.layer, bar.expert, format_size(bar.amount), time));
      continue;
    }
    const auto part = static_cast<std::size_t>(bar.part);
    seen[part] = true;
    std::string title = fmt::format("{} {}", part_name(bar.part), time);
    if (bar.layer >= 0) title = fmt::format("layer {} {}", bar.layer, title);
    picture.rect(x, bar.part == Part::kWait ? wait : compute, width, kLane, fmt::format("p{}", part), title);
  }
  const double bottom = read + read_height;
  for (const Event& step : window.steps) {
    picture.rect(place(step.begin), compute - 6, 1, bottom - compute + 12, "edge",
                 fmt::format("step of {} rows, {}", step.amount, duration(step.end - step.begin)));
  }
  picture.text(kLeft, bottom + 18, "0");
  picture.text(kLeft + kInner, bottom + 18, duration(span), "text-anchor=\"end\"");
  double x = kLeft;
  const double legend = bottom + 36;
  for (std::size_t i = 0; i < kParts; ++i) {
    if (!seen[i]) continue;
    picture.rect(x, legend - 10, 12, 12, fmt::format("p{}", i));
    const std::string_view name = part_name(static_cast<Part>(i));
    picture.text(x + 16, legend, name);
    x += 34 + 7.0 * static_cast<double>(name.size());
  }
  return legend + 24;
}

/// 0 for none, else 1 to kLevels in equal ratios up to the highest count.
int level_of(std::uint64_t count, std::uint64_t highest) {
  if (count == 0) return 0;
  if (highest <= 1) return kLevels;
  const double share = std::log(static_cast<double>(count)) / std::log(static_cast<double>(highest));
  return 1 + std::min(kLevels - 1, static_cast<int>(share * kLevels));
}

double draw_heat(Picture& picture, const Statistics& statistics, double y) {
  const std::int64_t layers = statistics.shape().layers;
  const std::int64_t experts = statistics.shape().experts;
  const auto wanted = [&](std::int64_t layer, std::int64_t expert) {
    return statistics.hits(layer, expert) + statistics.misses(layer, expert);
  };
  std::uint64_t highest = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (std::int64_t expert = 0; expert < experts; ++expert)
      highest = std::max(highest, wanted(layer, expert));
  }
  const double row = std::clamp(480.0 / static_cast<double>(layers), 2.0, 20.0);
  const double cell = kInner / static_cast<double>(experts);
  picture.rect(kLeft, y, kInner, row * static_cast<double>(layers), "h0");
  // One path a level: runs of neighbours of the same level as one bar.
  std::array<std::string, kLevels + 1> paths;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (std::int64_t expert = 0; expert < experts;) {
      const int level = level_of(wanted(layer, expert), highest);
      std::int64_t end = expert + 1;
      while (end < experts && level_of(wanted(layer, end), highest) == level) ++end;
      if (level > 0) {
        paths[static_cast<std::size_t>(level)] +=
            fmt::format("M{:.2f} {:.2f}h{:.2f}v{:.2f}h{:.2f}z", kLeft + cell * static_cast<double>(expert),
                        y + row * static_cast<double>(layer), cell * static_cast<double>(end - expert), row,
                        -cell * static_cast<double>(end - expert));
      }
      expert = end;
    }
  }
  for (int level = 1; level <= kLevels; ++level) {
    const std::string& data = paths[static_cast<std::size_t>(level)];
    if (!data.empty()) picture.path(fmt::format("h{}", level), data);
  }
  const auto step = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(14 / row)));
  for (std::int64_t layer = 0; layer < layers; layer += step) {
    picture.text(kLeft - 8, y + row * (static_cast<double>(layer) + 0.5) + 4, fmt::format("{}", layer),
                 "text-anchor=\"end\"");
  }
  const double bottom = y + row * static_cast<double>(layers);
  picture.text(kLeft, bottom + 16, "0");
  picture.text(kLeft + kInner, bottom + 16, fmt::format("expert {}", experts - 1), "text-anchor=\"end\"");
  const double legend = bottom + 40;
  picture.text(kLeft, legend, "wanted");
  double x = kLeft + 60;
  for (int level = 0; level <= kLevels; ++level) {
    picture.rect(x, legend - 10, 20, 12, fmt::format("h{}", level));
    const double least =
        level == 0 ? 0 : std::ceil(std::pow(static_cast<double>(highest), (level - 1.0) / kLevels));
    if (level == 0 || (highest > 0 && (highest > 1 || level == kLevels))) {
      picture.text(x + 24, legend, format_count(static_cast<std::uint64_t>(least)));
    }
    x += 90;
  }
  return legend + 20;
}

}  // namespace

std::string statistics_plot(const Statistics& statistics) {
  Picture picture;
  add_styles(picture);
  double y = 30;
  const std::string note = changed_results_note(statistics);
  for (std::size_t at = 0; at < note.size();) {
    const std::size_t end = note.find('\n', at);
    picture.text(kLeft, y, std::string_view(note).substr(at, end - at), "class=\"warn\"");
    y += 22;
    at = end + 1;
  }
  picture.text(kLeft, y, "The last steps", "class=\"head\"");
  y = draw_timeline(picture, statistics, y + 20);
  picture.text(kLeft, y + 16,
               fmt::format("How often each expert was wanted: {} layers (rows) of {} experts",
                           statistics.shape().layers, statistics.shape().experts),
               "class=\"head\"");
  y = draw_heat(picture, statistics, y + 32);
  return picture.finish(y);
}

}  // namespace sluice::experts
