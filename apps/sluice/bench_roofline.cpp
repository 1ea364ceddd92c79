#include "bench_roofline.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/units.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

Json times_json(const StepTimes& times) {
  const auto [least, most] = std::minmax_element(times.seconds.begin(), times.seconds.end());
  return {{"repetitions", times.seconds.size()},
          {"ms_median", 1e3 * median(times.seconds)},
          {"ms_min", 1e3 * *least},
          {"ms_max", 1e3 * *most}};
}

void print_times(const std::string& what, const Json& j, double tokens_per_second) {
  print_out("{}: {:.2f} ms (median of {}; {:.2f} to {:.2f}), {:.1f} tokens/s\n", what,
            j["ms_median"].get<double>(), j["repetitions"].get<std::size_t>(), j["ms_min"].get<double>(),
            j["ms_max"].get<double>(), tokens_per_second);
}

/// What steps read from a drive of `rate` bytes a second, and how near they come to the larger of that and of
/// what they do but wait.
Json reads_json(const StepTimes& times, double rate) {
  const auto steps = static_cast<double>(times.seconds.size());
  const double seconds = std::accumulate(times.seconds.begin(), times.seconds.end(), 0.0);
  const auto bytes = static_cast<double>(times.after.bytes_read - times.before.bytes_read);
  const double wait = times.after.wait_seconds - times.before.wait_seconds;
  return {{"drive_bytes_per_second", rate},
          {"bytes_read_a_step", bytes / steps},
          {"ms_at_drive_rate", 1e3 * bytes / rate / steps},
          {"ms_wait", 1e3 * wait / steps},
          {"share_of_limit", std::max(bytes / rate, seconds - wait) / seconds}};
}

void print_reads(const Json& j) {
  print_out(
      "  read {} a step: {:.2f} ms at the drive's rate ({} a second); {:.2f} ms of waiting; {:.0f}% of the "
      "limit\n",
      format_size(j["bytes_read_a_step"].get<std::uint64_t>()), j["ms_at_drive_rate"].get<double>(),
      format_size(j["drive_bytes_per_second"].get<std::uint64_t>()), j["ms_wait"].get<double>(),
      100 * j["share_of_limit"].get<double>());
}

}  // namespace

Result<Json> measure_steps(model::Model& model, const RooflineOptions& options, const StepBenchOptions& steps,
                           const std::vector<std::int64_t>& prompts, std::int64_t record_bytes, int threads,
                           bool json) {
  std::optional<backend::cpu::MachineMeter> meter;
  if (options.roofline) {
    SLUICE_ASSIGN(auto made, backend::cpu::MachineMeter::create(threads));
    meter.emplace(std::move(made));
  }
  StepBench bench(model, steps, meter ? &*meter : nullptr);
  Json out = {{"prefill", Json::array()}, {"decode", Json::array()}};
  if (meter) {
    std::vector<double> reads;
    std::vector<double> products;
    for (int i = 0; i < 5; ++i) {
      reads.push_back(meter->read_rate());
      products.push_back(meter->multiply_rate());
    }
    out["machine"] = {{"threads", meter->threads()},
                      {"read_bytes_per_second", median(reads)},
                      {"multiply_adds_per_second", median(products)}};
    if (!json) {
      print_out("{} threads read {} a second and do {:.1f} G multiply-adds of float32 a second\n",
                meter->threads(), format_size(static_cast<std::uint64_t>(median(reads))),
                median(products) / 1e9);
    }
  }
  for (const std::int64_t tokens : prompts) {
    SLUICE_TRY(bench.prefill(std::min<std::int64_t>(tokens, steps.chunk), 1));  // warm-up
    SLUICE_ASSIGN(const StepTimes times, bench.prefill(tokens, static_cast<int>(options.repeat)));
    const double work = multiply_adds_of_token(model) * static_cast<double>(tokens);
    Json j = times_json(times);
    const double rate = static_cast<double>(tokens) / median(times.seconds);
    j["tokens"] = tokens;
    j["tokens_per_second"] = rate;
    j["multiply_adds"] = work;
    if (meter) j["share_of_multiply_rate"] = share_of_limit(times, work);
    if (!json) {
      print_times(fmt::format("prefill {}", tokens), j, rate);
      print_out("  {:.1f} G multiply-adds a second", work / median(times.seconds) / 1e9);
      if (meter) print_out(": {:.0f}% of the float32 rate beside it", 100 * share_of_limit(times, work));
      print_out("\n");
    }
    out["prefill"].push_back(std::move(j));
  }
  for (const std::int64_t depth : options.depth) {
    for (const std::int64_t rows : options.rows) {
      if (steps.steps == 0) continue;
      // Drives drift: the rate counts that was there before and after.
      double drive = 0;
      if (options.drive) {
        SLUICE_ASSIGN(drive, options.drive());
      }
      SLUICE_ASSIGN(const StepTimes times, bench.decode(depth, rows));
      if (options.drive) {
        SLUICE_ASSIGN(const double after, options.drive());
        drive = (drive + after) / 2;
      }
      const double bytes = bytes_touched(model, rows, steps.same_experts, record_bytes);
      Json j = times_json(times);
      const double rate = static_cast<double>(rows) / median(times.seconds);
      j["depth"] = depth;
      j["rows"] = rows;
      j["same_experts"] = steps.same_experts;
      j["tokens_per_second"] = rate;
      j["bytes_touched"] = bytes;
      if (meter) j["share_of_read_rate"] = share_of_limit(times, bytes);
      if (drive > 0) j["reads"] = reads_json(times, drive);
      if (!json) {
        print_times(fmt::format("decode at {}, {} row{}", depth, rows, rows == 1 ? "" : "s"), j, rate);
        print_out("  {} of weights a step, {} a second", format_size(static_cast<std::uint64_t>(bytes)),
                  format_size(static_cast<std::uint64_t>(bytes / median(times.seconds))));
        if (meter) print_out(": {:.0f}% of the read rate beside it", 100 * share_of_limit(times, bytes));
        print_out("\n");
        if (drive > 0) print_reads(j["reads"]);
      }
      out["decode"].push_back(std::move(j));
    }
  }
  return out;
}

}  // namespace sluice::cli
