#include "experts/statistics_report.h"

#include <algorithm>
#include <numeric>

#include "base/units.h"

namespace sluice::experts {
namespace {

constexpr std::size_t kHottest = 4;

double ratio(double a, double b) {
  return b > 0 ? a / b : 0;
}

double as_double(std::uint64_t count) {
  return static_cast<double>(count);
}

std::string percent(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f}%", 100 * part / whole) : std::string("-");
}

void line(std::string& out, std::string_view title, std::string_view text) {
  out += fmt::format("{:<18}{}\n", title, text);
}

/// "500 tokens in 500 steps, 62.50 s: 8.00 tokens/s, 125.0 ms a token"
std::string speed(const PhaseCounts& phase) {
  if (phase.tokens == 0) return "no tokens";
  return fmt::format("{} tokens in {} steps, {:.2f} s: {:.2f} tokens/s, {:.2f} ms a token", phase.tokens,
                     phase.steps, phase.seconds, ratio(as_double(phase.tokens), phase.seconds),
                     1000 * phase.seconds / as_double(phase.tokens));
}

/// "92.3% of 4800 there, 100 late, 270 missing; 7.43 MB read a token, 12.1 ms of waiting a token"
std::string records(const PhaseCounts& phase) {
  const LayerCounts sum = phase.sum();
  const double tokens = as_double(phase.tokens);
  return fmt::format(
      "{} of {} wanted were there, {} on their way, {} missing; a token {:.3f} MB read, {:.2f} ms waited",
      percent(as_double(sum.hits), as_double(sum.wanted())), sum.wanted(), sum.late, sum.misses,
      ratio(as_double(sum.bytes) / 1e6, tokens), ratio(1000 * sum.wait_seconds, tokens));
}

void parts_table(std::string& out, const PhaseCounts& decode, const PhaseCounts& prefill) {
  out += fmt::format("\n{:<18}{:>20}  {:>20}\n", "time, ms a token", "decode", "prefill");
  const auto cell = [](const PhaseCounts& phase, std::size_t part) {
    if (phase.tokens == 0) return std::string("-");
    return fmt::format("{:.3f} {:>7}", 1000 * phase.parts[part] / as_double(phase.tokens),
                       percent(phase.parts[part], phase.seconds));
  };
  for (std::size_t i = 0; i < kParts; ++i) {
    if (decode.parts[i] <= 0 && prefill.parts[i] <= 0) continue;
    std::string name(part_name(static_cast<Part>(i)));
    std::replace(name.begin(), name.end(), '_', ' ');
    out += fmt::format("  {:<16}{:>20}  {:>20}\n", name, cell(decode, i), cell(prefill, i));
  }
}

/// "17 (3.1%), 401 (2.2%)": the experts wanted most, with their share of the layer's wishes.
std::string hottest(const Statistics& statistics, std::int64_t layer) {
  const std::int64_t experts = statistics.shape().experts;
  const auto wanted = [&](std::int64_t expert) {
    return statistics.hits(layer, expert) + statistics.misses(layer, expert);
  };
  std::vector<std::int64_t> ids(static_cast<std::size_t>(experts));
  std::iota(ids.begin(), ids.end(), 0);
  const auto count = std::min<std::size_t>(kHottest, ids.size());
  std::partial_sort(
      ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(count), ids.end(),
      [&](std::int64_t a, std::int64_t b) { return wanted(a) != wanted(b) ? wanted(a) > wanted(b) : a < b; });
  double all = 0;
  for (const std::int64_t id : ids) all += as_double(wanted(id));
  std::string out;
  for (std::size_t i = 0; i < count && wanted(ids[i]) > 0; ++i) {
    out += fmt::format("{}{} ({})", i == 0 ? "" : ", ", ids[i], percent(as_double(wanted(ids[i])), all));
  }
  return out;
}

void layer_table(std::string& out, const Statistics& statistics) {
  // Of decoding, which is what a pool is for, where there was any.
  const bool decoded = statistics.decode().tokens > 0;
  const PhaseCounts& phase = decoded ? statistics.decode() : statistics.prefill();
  const double tokens = as_double(phase.tokens);
  const bool ahead = phase.sum().predicted > 0;
  out += fmt::format("\nlayers, {}\n{:>5}{:>9}{:>9}{:>10}{:>10}{:>9}{}  {}\n", decoded ? "decode" : "prefill",
                     "layer", "hits", "late", "misses", "MB/token", "wait ms",
                     ahead ? fmt::format("{:>18}", "ahead u/l/w") : "", "hottest experts, prefill included");
  for (std::int64_t i = 0; i < statistics.shape().layers; ++i) {
    const LayerCounts& c = phase.layers[static_cast<std::size_t>(i)];
    if (c.wanted() == 0) continue;
    out += fmt::format(
        "{:>5}{:>9}{:>9}{:>10}{:>10.3f}{:>9.3f}{}  {}\n", i,
        percent(as_double(c.hits), as_double(c.wanted())), percent(as_double(c.late), as_double(c.wanted())),
        c.misses, ratio(as_double(c.bytes) / 1e6, tokens), ratio(1000 * c.wait_seconds, tokens),
        ahead ? fmt::format("{:>18}", fmt::format("{}/{}/{}", c.useful, c.late_ahead, c.wasted)) : "",
        hottest(statistics, i));
  }
}

}  // namespace

std::string changed_results_note(const Statistics& statistics) {
  const LayerCounts all = statistics.totals();
  std::string out;
  if (statistics.miss_experts()) {
    out += fmt::format(
        "RESULTS ARE CHANGED by --miss-experts {}: {} missing records were computed with {} bits\n",
        *statistics.miss_experts(), all.low_tier, *statistics.miss_experts());
  }
  if (statistics.cut_weak()) {
    out += fmt::format("RESULTS ARE CHANGED by --cut-weak {}: {} weak choices were not computed\n",
                       *statistics.cut_weak(), all.dropped);
  }
  return out;
}

std::string statistics_report(const Statistics& statistics) {
  const Statistics::Shape& shape = statistics.shape();
  std::string out = changed_results_note(statistics);
  line(out, "experts",
       fmt::format("{} layers of {}, records of {}", shape.layers, shape.experts,
                   format_size(shape.record_bytes)));
  if (shape.pool_slots > 0) {
    std::string text =
        fmt::format("{} records, {}: {} of all", shape.pool_slots, format_size(shape.pool_bytes),
                    percent(as_double(shape.pool_slots), static_cast<double>(shape.layers * shape.experts)));
    if (!shape.reader.empty()) text += ", read through " + shape.reader;
    if (statistics.retries() > 0) text += fmt::format("; {} reads tried again", statistics.retries());
    line(out, "pool", text);
  } else {
    line(out, "pool", "none, every record is kept in memory");
  }
  if (shape.device_slots > 0) {
    const DeviceCounts& device = statistics.device();
    const double wanted = as_double(statistics.totals().wanted());
    line(out, "device pool",
         fmt::format(
             "{} records, {}: {} of all", shape.device_slots, format_size(shape.device_bytes),
             percent(as_double(shape.device_slots), static_cast<double>(shape.layers * shape.experts))));
    line(out, "",
         fmt::format("{} of {:.0f} wanted were there; {} read in place, {} copied, {} over the bus",
                     percent(as_double(device.hits), wanted), wanted, device.in_place, device.copied,
                     format_size(device.bus_bytes)));
  }
  line(out, "decode", speed(statistics.decode()));
  line(out, "", records(statistics.decode()));
  line(out, "prefill", speed(statistics.prefill()));
  line(out, "", records(statistics.prefill()));
  if (const LayerCounts all = statistics.totals(); all.predicted > 0) {
    const double read = as_double(all.useful + all.late_ahead + all.wasted);
    line(out, "lookahead",
         fmt::format("{} named; of {:.0f} reads {} useful, {} late, {} wasted", all.predicted, read,
                     percent(as_double(all.useful), read), percent(as_double(all.late_ahead), read),
                     percent(as_double(all.wasted), read)));
  }
  parts_table(out, statistics.decode(), statistics.prefill());
  layer_table(out, statistics);
  return out;
}

}  // namespace sluice::experts
