// sluice logits: float32 logits of every position, to compare with other implementations.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "backend/create.h"
#include "base/file.h"
#include "command.h"
#include "decode/logits_run.h"
#include "decode/token_ids.h"
#include "engine/loading.h"
#include "store/safetensors.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

struct LogitsOptions {
  ModelOptions model;
  std::string ids;
  std::string out;
  decode::LogitsRunOptions run;
  LogitsOptions() { model.engine.exact = true; }  // to be compared with a reference
};

constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;

Result<std::vector<std::int32_t>> read_ids(const std::string& given) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(given, ignored)) {
    SLUICE_ASSIGN(const auto text, read_text_file(given, kMostBytes));
    return decode::parse_token_ids(text);
  }
  return decode::parse_token_ids(given);
}

store::TensorData tensor(std::string name, std::int64_t rows, const std::vector<float>& values) {
  const auto columns = rows == 0 ? 0 : static_cast<std::int64_t>(values.size()) / rows;
  return {std::move(name), store::Dtype::kF32, {rows, columns}, std::as_bytes(std::span(values))};
}

Result<void> logits(const LogitsOptions& options) {
  SLUICE_ASSIGN(const auto ids, read_ids(options.ids));
  SLUICE_ASSIGN(auto source, store::open_source(options.model.folder));
  SLUICE_TRY(decode::check_token_ids(ids, source->config().vocab));
  const auto rows = static_cast<std::int64_t>(ids.size());
  engine::PlanOptions planned;
  planned.context = std::min(rows, source->config().max_positions);
  planned.memory = options.model.engine.memory;
  planned.max_rows = std::max(engine::kChunk, std::min(options.run.chunk, rows));
  planned.draft_head = options.run.mtp;
  planned.experts = options.model.engine.experts;
  SLUICE_ASSIGN(const auto backend,
                backend::create_backend(
                    options.model.engine.backend,
                    {options.model.engine.threads, options.model.engine.device, options.model.engine.exact}));
  SLUICE_ASSIGN(const model::ModelOptions model_options,
                engine::choose_loading(*source, planned, options.model.engine, *backend));
  ProgressBar loading("loading");
  SLUICE_ASSIGN(const auto model, model::Model::load(std::move(source), *backend, model_options,
                                                     [&](std::uint64_t done, std::uint64_t total) {
                                                       loading.update(done, total);
                                                     }));
  loading.clear();
  SLUICE_ASSIGN(const auto run, decode::run_logits(*model, ids, options.run));
  std::vector<store::TensorData> tensors;
  tensors.push_back({"ids", store::Dtype::kI32, {rows}, std::as_bytes(std::span(ids))});
  tensors.push_back(tensor("logits", rows, run.logits));
  for (std::size_t n = 0; n < run.wide.size(); ++n)
    tensors.push_back(tensor(fmt::format("wide{}", n), rows, run.wide[n]));
  if (options.run.mtp && rows > 1) tensors.push_back(tensor("mtp_logits", rows - 1, run.mtp_logits));
  return store::write_safetensors(options.out, tensors, {{"format", "sluice"}});
}

}  // namespace

void add_logits(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<LogitsOptions>();
  CLI::App* command =
      add_command(app, "logits", "Write float32 logits of every position to a safetensors file.",
                  "sluice logits models/demo --ids 4065,268,258 --out logits.safetensors --mtp");
  options->model.add_to(*command, false, false);
  command
      ->add_option("--ids", options->ids, "token ids with commas or as a JSON array, or a file holding them")
      ->required();
  command->add_option("--out", options->out, "file to write: logits, wide0 ..., mtp_logits")->required();
  auto* chunk = command->add_option("--chunk", options->run.chunk, "prefill in chunks of this many tokens")
                    ->check(kCount);
  command
      ->add_option("--rows", options->run.rows,
                   "decode in steps of this many rows (1 to 8) instead of prefilling")
      ->check(CLI::Range(1, 8))
      ->excludes(chunk);
  command->add_flag("--wide", options->run.wide, "also the wide residual after each layer");
  command->add_flag("--mtp", options->run.mtp,
                    "also the draft head's logits for every position but the last");
  command->callback([options, &invocation] {
    invocation.run = [options] {
      const auto result = logits(*options);
      return result.ok() ? kDone : fail(result.error());
    };
  });
}

}  // namespace sluice::cli
