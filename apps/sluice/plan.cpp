// sluice plan: what memory and disk a model needs, and whether they are there.
#include <memory>

#include "backend/create.h"
#include "base/json.h"
#include "base/units.h"
#include "command.h"
#include "engine/plan_report.h"
#include "pack_options.h"
#include "store/config_form.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

struct PlanCommand {
  std::string model;
  engine::PlanOptions plan;
  PackChoices choices;
  std::uint64_t device_memory = 0;
  bool no_pack = false;
  bool json = false;
};

/// One precision of those that are there, as run takes it.
Result<int> one_precision(const std::string& text, const std::string& what) {
  if (text.empty()) return 0;
  const auto formats = parse_precisions(text);
  if (formats.ok() && formats->size() == 1) return spec::bits_of(formats->front());
  return make_error(ErrorCode::kInvalidArgument, "--experts {}: one of the precisions needed that {} has",
                    text, what);
}

/// What is planned is what run would load: a store, or a checkpoint with --no-pack, as it is, and of another
/// checkpoint the store that pack makes.
Result<void> take_choices(PlanCommand& command, const engine::PlannedModel& model) {
  const bool is_store = model.source != nullptr && model.source->packed_bytes().has_value();
  if (!is_store && !command.no_pack) {
    SLUICE_ASSIGN(command.plan.packing, command.choices.to_options());
    return {};
  }
  if (!command.choices.dense.empty() || !command.choices.ngram.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: --dense and --ngram are for what pack makes of a checkpoint; {}", model.name,
                      is_store ? "this is a packed store" : "with --no-pack it is read as it is");
  }
  SLUICE_ASSIGN(command.plan.experts, one_precision(command.choices.experts, model.name));
  return {};
}

/// What the device has: as given, or as it says itself.
Result<void> find_device(PlanCommand& options) {
  std::string& backend = options.plan.backend;
  if (options.device_memory > 0) {
    if (backend == "auto") backend = "cuda";
    if (backend != "cuda") {
      return make_error(ErrorCode::kInvalidArgument, "--device-memory: backend {} has no memory of its own",
                        backend);
    }
    options.plan.device_memory = options.device_memory;
    return {};
  }
  if (backend != "cuda" && backend != "auto") return {};
  const auto opened = backend::create_backend(backend, {});
  if (!opened.ok()) {
    return make_error(opened.error().code, "{}; --device-memory SIZE plans for one with so much memory",
                      opened.error().message);
  }
  backend = (*opened)->name();
  options.plan.device_memory = (*opened)->device_memory();
  return {};
}

Result<int> plan(PlanCommand& options) {
  SLUICE_TRY(find_device(options));
  SLUICE_ASSIGN(const auto memory, engine::find_memory(options.plan.memory));
  SLUICE_ASSIGN(const auto model, engine::open_planned(options.model));
  SLUICE_TRY(take_choices(options, model));
  const store::ConfigForm announced(model.config);
  const store::SourceForm* source = model.source.get();
  if (source == nullptr) source = &announced;
  SLUICE_ASSIGN(const auto made, engine::make_plan(model.config, source, options.plan, memory));
  if (options.json) {
    print_out("{}\n", dump_json(engine::plan_json(model, made), 2));
  } else {
    write_out(engine::plan_text(model, made));
  }
  return made.fits() ? kDone : kFailed;
}

}  // namespace

void add_plan(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<PlanCommand>();
  CLI::App* command =
      add_command(app, "plan", "Show what memory and disk a model needs, and whether this machine has it.",
                  "sluice plan qwen3.8-flash-next --memory 32G --ctx 32768\n\n"
                  "Exit code 0 when the model fits, 1 when it does not.");
  command
      ->add_option("MODEL", options->model,
                   "folder of a store or a checkpoint (its config.json is enough), a config.json, or a name: "
                   "qwen3.8-flash-next, demo, tiny")
      ->required();
  command
      ->add_option("--ctx", options->plan.context,
                   "tokens of context of a session (default: the model's, at most 16384)")
      ->check(kCount);
  add_kv(*command, options->plan.kv_q8);
  add_memory(*command, options->plan.memory);
  add_size(*command, "--pool", options->plan.pool, "memory for experts, such as 8G (default: what remains)");
  add_device_pool(*command, options->plan.device_pool);
  add_size(
      *command, "--device-memory", options->device_memory,
      "memory of a GPU to plan with, such as 80G, with --backend cuda (default: what the one here has free)");
  command->add_option("--sessions", options->plan.sessions, "sessions at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  add_backend(*command, options->plan.backend, nullptr);
  options->choices.dense.clear();
  options->choices.ngram.clear();
  command
      ->add_option("--experts", options->choices.experts,
                   "of a store: bits of the experts, as for run; else as for pack: 8, 4, 3, 2, several with "
                   "commas, or keep (default: a store's best, else 4)")
      ->check(precisions());
  command
      ->add_option("--dense", options->choices.dense,
                   "bits of the other matrices once packed, as for pack (default: 8)")
      ->check(CLI::IsMember({"4", "8", "bf16"}));
  command
      ->add_option("--ngram", options->choices.ngram,
                   "bits of the n-gram rows once packed, as for pack (default: 4)")
      ->check(CLI::IsMember({"4", "keep"}));
  command->add_flag("--no-pack", options->no_pack, "plan a checkpoint as it is, as run --no-pack reads it");
  command->add_flag("--json", options->json, "JSON output, sizes in bytes");
  command->callback([options, &invocation] {
    invocation.run = [options] {
      const auto result = plan(*options);
      return result.ok() ? result.value() : fail(result.error());
    };
  });
}

}  // namespace sluice::cli
