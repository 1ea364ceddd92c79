#include "answer.h"

#include <fmt/format.h>

#include "terminal.h"

namespace sluice::cli {
namespace {

constexpr std::string_view kDim = "\033[2m";
constexpr std::string_view kPlain = "\033[0m";

double rate(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

/// Reasoning dimmed on a terminal and set apart by a blank line; elsewhere left out unless asked for.
class Printer {
 public:
  explicit Printer(bool show_thinking)
      : terminal_(output_is_terminal()), shows_thinking_(terminal_ || show_thinking) {}

  bool print(TextKind kind, std::string_view text) {
    if (kind == TextKind::kReasoning) {
      if (!shows_thinking_) return true;
      if (!thinking_ && terminal_) write_out(kDim);
      thinking_ = true;
      return write_out(text);
    }
    if (thinking_) {
      thinking_ = false;
      if (terminal_) write_out(kPlain);
      write_out("\n\n");
    }
    return write_out(text);
  }

  void finish() {
    if (thinking_ && terminal_) write_out(kPlain);
    write_out("\n");
  }

 private:
  bool terminal_;
  bool shows_thinking_;
  bool thinking_ = false;
};

}  // namespace

Result<Generation> answer(Session& session, const std::string& prompt, const AnswerOptions& options) {
  GenerateRequest request;
  request.prompt = prompt;
  request.sampling = options.sampling;
  request.max_tokens = options.max_tokens;
  request.stop = options.stop;
  Printer printer(options.show_thinking);
  ProgressBar reading("reading the prompt");
  request.on_prefill = [&](std::int64_t done, std::int64_t total) {
    reading.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total));
    if (done == total) reading.clear();
    return !InterruptGuard::interrupted();
  };
  request.on_text = [&](TextKind kind, std::string_view text) {
    return (options.quiet || printer.print(kind, text)) && !InterruptGuard::interrupted();
  };
  auto generation = session.generate(request);
  if (generation.ok() && !options.quiet) printer.finish();
  return generation;
}

Json statistics_json(const Generation& g) {
  const auto out = static_cast<std::int64_t>(g.tokens.size());
  return {{"prompt_tokens", g.prompt_tokens},
          {"reused_tokens", g.reused_tokens},
          {"generated_tokens", out},
          {"prefill_seconds", g.prefill_seconds},
          {"prefill_tokens_per_second", rate(g.prompt_tokens - g.reused_tokens, g.prefill_seconds)},
          {"decode_seconds", g.decode_seconds},
          {"decode_tokens_per_second", rate(out, g.decode_seconds)},
          {"stop_reason", g.stop_reason},
          {"seed", g.seed},
          {"experts",
           {{"hits", g.experts.hits},
            {"late", g.experts.late},
            {"misses", g.experts.misses},
            {"bytes_read", g.experts.bytes_read},
            {"retries", g.experts.retries},
            {"wait_seconds", g.experts.wait_seconds},
            {"read_seconds", g.experts.read_seconds},
            {"lookahead",
             {{"read", g.experts.ahead},
              {"useful", g.experts.ahead_useful},
              {"late", g.experts.ahead_late},
              {"wasted", g.experts.ahead_wasted}}},
            {"device",
             {{"hits", g.experts.device_hits},
              {"in_place", g.experts.in_place},
              {"copied", g.experts.copied},
              {"bus_bytes", g.experts.bus_bytes}}},
            {"low_tier", g.experts.low_tier},
            {"dropped", g.experts.dropped}}}};
}

Json generation_json(const Generation& g) {
  return {
      {"answer", g.answer}, {"reasoning", g.reasoning}, {"tokens", g.tokens}, {"stats", statistics_json(g)}};
}

std::string summary_line(const Generation& g) {
  const auto in = g.prompt_tokens - g.reused_tokens;
  const auto out = static_cast<std::int64_t>(g.tokens.size());
  std::string changed;
  if (g.experts.low_tier > 0) changed += fmt::format(", {} experts at fewer bits", g.experts.low_tier);
  if (g.experts.dropped > 0) changed += fmt::format(", {} experts left out", g.experts.dropped);
  return fmt::format("{} tokens read in {:.2f} s ({:.0f}/s), {} written in {:.2f} s ({:.0f}/s){}{}", in,
                     g.prefill_seconds, rate(in, g.prefill_seconds), out, g.decode_seconds,
                     rate(out, g.decode_seconds), g.stop_reason == "stop" ? "" : ", " + g.stop_reason,
                     changed);
}

}  // namespace sluice::cli
