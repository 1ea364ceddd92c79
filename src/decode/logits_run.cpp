#include "decode/logits_run.h"

#include <unistd.h>

#include <algorithm>

#include "base/units.h"
#include "decode/token_ids.h"

namespace sluice::decode {
namespace {

using model::Dev;

void fetch(model::Model& model, std::vector<float>& to, std::int64_t at, std::int64_t count,
           Dev<const float> from) {
  const auto part = std::span(to).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count));
  model.backend().download(std::as_writable_bytes(part),
                           Dev(reinterpret_cast<const std::byte*>(from.address())));
}

// Everything asked for is kept until it is written.
Result<void> check_memory(const spec::ModelConfig& config, std::int64_t rows,
                          const LogitsRunOptions& options) {
  const std::int64_t floats = rows * (config.vocab * (options.mtp ? 2 : 1) +
                                      (options.wide ? config.layer_count() * config.wide() : 0));
  const auto needed = static_cast<std::uint64_t>(floats) * sizeof(float);
  const auto machine = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (needed > machine / 4 * 3) {
    return make_error(ErrorCode::kOutOfMemory,
                      "results for {} ids: {} needed, the machine has {}; ask for fewer ids", rows,
                      format_size(needed), format_size(machine));
  }
  return {};
}

}  // namespace

Result<LogitsRun> run_logits(model::Model& model, std::span<const std::int32_t> ids,
                             const LogitsRunOptions& options) {
  const auto& config = model.config();
  SLUICE_TRY(check_token_ids({ids.begin(), ids.end()}, config.vocab));
  const auto total = static_cast<std::int64_t>(ids.size());
  if (total > config.max_positions) {
    return make_error(ErrorCode::kLimit, "{} ids: the model's context is {}", total, config.max_positions);
  }
  if (options.rows < 0 || options.rows > 8) {
    return make_error(ErrorCode::kInvalidArgument, "rows {}: needed 1 to 8", options.rows);
  }
  if (options.chunk < 0)
    return make_error(ErrorCode::kInvalidArgument, "chunk {}: needed 1 or more", options.chunk);
  if (options.mtp && !model.has_mtp()) {
    return make_error(ErrorCode::kUnsupported, "mtp logits: the model in {} has no MTP head",
                      model.source().folder().string());
  }
  SLUICE_TRY(check_memory(config, total, options));
  LogitsRun run;
  run.logits.resize(static_cast<std::size_t>(total * config.vocab));
  if (options.wide) {
    run.wide.assign(static_cast<std::size_t>(config.layer_count()),
                    std::vector<float>(static_cast<std::size_t>(total * config.wide())));
  }
  if (options.mtp) run.mtp_logits.resize(static_cast<std::size_t>((total - 1) * config.vocab));

  SLUICE_ASSIGN(const auto state, model.new_state(total));
  std::int64_t step = options.rows > 0 ? options.rows : options.chunk > 0 ? options.chunk : model.max_rows();
  step = std::min(step, model.max_rows());
  for (std::int64_t at = 0; at < total; at += step) {
    const std::int64_t rows = std::min(step, total - at);
    const model::Segment segment{state.get(),
                                 ids.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(rows))};
    model::ForwardOptions forward;
    forward.logits = model::ForwardOptions::Logits::kAll;
    forward.on_logits = [&](std::int64_t first, std::int64_t count, Dev<const float> data) -> Result<void> {
      fetch(model, run.logits, (at + first) * config.vocab, count * config.vocab, data);
      return {};
    };
    if (options.wide) {
      forward.on_layer = [&](std::int64_t layer, std::int64_t count, Dev<const float> wide) -> Result<void> {
        fetch(model, run.wide[static_cast<std::size_t>(layer)], at * config.wide(), count * config.wide(),
              wide);
        return {};
      };
    }
    if (options.mtp) {
      // The row made with token t is MTP row t - 1.
      forward.on_mtp_logits = [&](std::int64_t first, std::int64_t count,
                                  Dev<const float> data) -> Result<void> {
        fetch(model, run.mtp_logits, (at + first - 1) * config.vocab, count * config.vocab, data);
        return {};
      };
    }
    SLUICE_TRY(model.forward(std::span(&segment, 1), forward));
    SLUICE_TRY(state->commit(rows));
  }
  return run;
}

}  // namespace sluice::decode
