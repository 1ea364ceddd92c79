#include "engine/plan_report.h"

#include <algorithm>

#include "base/units.h"
#include "text/printable.h"

namespace sluice::engine {
namespace {

std::string precision(spec::Format format) {
  switch (format) {
    case spec::Format::kF32:
      return "float32";
    case spec::Format::kBf16:
      return "bfloat16";
    default:
      return fmt::format("{} bits", spec::bits_of(format));
  }
}

void line(std::string& out, std::string_view title, std::string_view value, std::string_view note = "") {
  out += fmt::format("  {:<20}{:>12}{}{}\n", title, value, note.empty() ? "" : "  ", note);
}

void size_line(std::string& out, std::string_view title, std::uint64_t bytes, std::string_view note = "") {
  line(out, title, format_size(bytes), note);
}

std::string context_note(const MemoryPlan& plan) {
  const std::string sessions = plan.sessions == 1 ? "a session" : fmt::format("{} sessions", plan.sessions);
  return fmt::format("{} of {} tokens: {} and {} a token", sessions, plan.context,
                     format_size(plan.session_fixed), format_size(plan.session_token));
}

std::string found_note(const FoundMemory& found) {
  if (found.given) return "given";
  return fmt::format("{} available of {}, {} kept for the rest", format_size(found.available),
                     format_size(found.total), format_size(found.reserve));
}

}  // namespace

std::string plan_verdict(const MemoryPlan& plan) {
  if (plan.fits_resident()) return "fits with every expert in memory";
  if (plan.fits_pool() && plan.device) {
    return fmt::format(
        "fits with experts read from disk, {:.1f}% of them in pinned memory at a time, {:.1f}% on the device",
        100 * plan.experts.share(),
        100 * static_cast<double>(plan.experts.device_slots) / static_cast<double>(plan.experts.records));
  }
  if (plan.fits_pool()) {
    const std::uint64_t all = std::max(plan.resident_total(), plan.memory.usable);
    return fmt::format(
        "fits with experts read from disk, {:.1f}% of them in memory at a time; to hold all, {} more",
        100 * plan.experts.share(), format_size(all - plan.memory.usable));
  }
  if (!plan.fits_device()) {
    return fmt::format("does not fit: {} of the device's memory missing; {} needed, {} of {} usable",
                       format_size(plan.missing()), format_size(plan.device_pool_total()),
                       format_size(plan.device->usable()), format_size(plan.device->available));
  }
  const PlanPart most = plan.largest(false);
  return fmt::format("does not fit: {} missing; {} needed at least, {} {}; the largest part is {} with {}",
                     format_size(plan.missing()), format_size(std::max(plan.pool_least(), plan.pool_total())),
                     format_size(plan.memory.usable), plan.memory.given ? "given" : "found", most.title,
                     format_size(most.bytes));
}

std::string plan_text(const PlannedModel& model, const MemoryPlan& plan) {
  const ExpertPlan& e = plan.experts;
  const bool all = plan.fits_resident();
  std::string out =
      fmt::format("{}: {}, {} layers, {} experts of {}, backend {}\n", text::printable(model.name),
                  text::printable(model.form), model.config.layer_count(), model.config.experts,
                  precision(e.layout.format), plan.backend);
  const auto parts = [&](bool device) {
    for (const PlanPart& part : plan.parts) {
      if (part.bytes == 0 || (plan.device && part.device) != device) continue;
      size_line(out, part.title, part.bytes, part.key == "context" ? context_note(plan) : "");
    }
  };
  const auto share_line = [&](std::string_view title, std::uint64_t bytes, std::int64_t slots) {
    size_line(out, title, bytes,
              fmt::format("{} of {} records, {:.1f}%", slots, e.records,
                          100 * static_cast<double>(slots) / static_cast<double>(e.records)));
  };
  const auto all_experts = [&] {
    size_line(out, "experts", e.resident_bytes, fmt::format("all {} records", e.records));
  };
  if (plan.device) {
    out += "device memory\n";
    parts(true);
    if (all) {
      all_experts();
    } else {
      share_line("device pool", e.device_bytes(), e.device_slots);
    }
    size_line(out, "total", all ? plan.device_resident_total() : plan.device_pool_total());
    size_line(out, "usable", plan.device->usable(),
              fmt::format("{} free, {} kept for kernels and driver", format_size(plan.device->available),
                          format_size(plan.device->reserve)));
  }
  out += "memory\n";
  parts(false);
  if (all && !plan.device) all_experts();
  if (!all && !plan.device && e.device_slots > 0) share_line("device pool", e.device_bytes(), e.device_slots);
  if (!all) share_line(plan.device ? "pinned pool" : "expert pool", e.pool_bytes(), e.slots);
  size_line(out, "total", all ? plan.resident_total() : plan.pool_total());
  size_line(out, "usable", plan.memory.usable, found_note(plan.memory));
  out += "experts\n";
  size_line(out, "record", static_cast<std::uint64_t>(e.layout.bytes()),
            fmt::format("{} B in a slot of {} B", e.layout.bytes(), e.slot_bytes));
  size_line(out, "all", e.resident_bytes,
            fmt::format("the model then needs {}",
                        format_size(plan.device ? plan.device_resident_total() : plan.resident_total())));
  size_line(
      out, "smallest pool", e.least_bytes(),
      fmt::format("{} records; the model then needs {}", e.least_slots, format_size(plan.pool_least())));
  size_line(out, "read for a token", e.token_bytes(),
            fmt::format("at most: {} records, none of them in memory", e.token_records));
  if (plan.ngram) {
    out += "n-gram table\n";
    size_line(out, "on disk", plan.ngram->table_bytes,
              fmt::format("{} rows of {} B, {} read for a token", plan.ngram->rows, plan.ngram->row_bytes,
                          plan.ngram->token_rows));
  }
  out += "disk\n";
  if (plan.file_bytes > 0) size_line(out, "checkpoint", plan.file_bytes);
  if (plan.store_bytes > 0) size_line(out, "packed store", plan.store_bytes);
  return out + plan_verdict(plan) + "\n";
}

Json plan_json(const PlannedModel& model, const MemoryPlan& plan) {
  const ExpertPlan& e = plan.experts;
  Json out;
  out["model"] = model.name;
  out["form"] = model.form;
  out["backend"] = plan.backend;
  out["fits"] = plan.fits();
  out["fits_resident"] = plan.fits_resident();
  out["missing"] = plan.missing();
  out["verdict"] = plan_verdict(plan);
  out["memory"] = {{"usable", plan.memory.usable},
                   {"given", plan.memory.given},
                   {"available", plan.memory.available},
                   {"total", plan.memory.total},
                   {"reserve", plan.memory.reserve}};
  Json parts = Json::object();
  for (const PlanPart& part : plan.parts) parts[std::string(part.key)] = part.bytes;
  out["parts"] = std::move(parts);
  out["totals"] = {{"without_experts", plan.fixed()},
                   {"resident", plan.resident_total()},
                   {"smallest_pool", plan.pool_least()},
                   {"pool", plan.pool_total()}};
  out["context"] = {{"tokens", plan.context},
                    {"sessions", plan.sessions},
                    {"session_bytes", plan.session_fixed},
                    {"token_bytes", plan.session_token}};
  out["experts"] = {{"format", precision(e.layout.format)},
                    {"group", e.layout.geometry.group},
                    {"layers", e.layers},
                    {"records", e.records},
                    {"record_bytes", e.layout.bytes()},
                    {"slot_bytes", e.slot_bytes},
                    {"file_bytes", e.file_bytes},
                    {"resident_bytes", e.resident_bytes},
                    {"token_records", e.token_records},
                    {"token_bytes", e.token_bytes()}};
  out["pool"] = {{"slots", e.slots},
                 {"bytes", e.pool_bytes()},
                 {"share", e.share()},
                 {"least_slots", e.least_slots},
                 {"least_bytes", e.least_bytes()}};
  out["device"] = nullptr;
  if (plan.device) {
    out["device"] = {{"available", plan.device->available},      {"reserve", plan.device->reserve},
                     {"usable", plan.device->usable()},          {"without_experts", plan.device_fixed()},
                     {"resident", plan.device_resident_total()}, {"pool", plan.device_pool_total()}};
  }
  out["device_pool"] = {{"slots", e.device_slots}, {"bytes", e.device_bytes()}};
  out["ngram"] = nullptr;
  if (plan.ngram) {
    out["ngram"] = {{"rows", plan.ngram->rows},
                    {"row_bytes", plan.ngram->row_bytes},
                    {"table_bytes", plan.ngram->table_bytes},
                    {"token_rows", plan.ngram->token_rows}};
  }
  out["disk"] = {{"checkpoint", plan.file_bytes}, {"store", plan.store_bytes}};
  return out;
}

}  // namespace sluice::engine
