// sluice plan: what memory and disk a model needs, and whether they are there.
#include <memory>

#include "base/json.h"
#include "base/units.h"
#include "command.h"
#include "engine/plan_report.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

struct PlanCommand {
  std::string model;
  engine::PlanOptions plan;
  std::string experts;
  std::string dense;
  bool json = false;
};

Result<int> plan(PlanCommand& options) {
  if (!options.experts.empty()) {
    options.plan.experts = options.experts == "4"   ? spec::Format::kQ4
                           : options.experts == "3" ? spec::Format::kQ3
                                                    : spec::Format::kQ2;
  }
  if (!options.dense.empty()) {
    options.plan.dense = options.dense == "4"   ? store::DenseBits::kQ4
                         : options.dense == "8" ? store::DenseBits::kQ8
                                                : store::DenseBits::kSource;
  }
  SLUICE_ASSIGN(const auto memory, engine::find_memory(options.plan.memory));
  SLUICE_ASSIGN(const auto model, engine::open_planned(options.model));
  SLUICE_ASSIGN(const auto made, engine::make_plan(model.config, model.source.get(), options.plan, memory));
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
                   "folder of a checkpoint (its config.json is enough), a config.json, or a name: "
                   "qwen3.8-flash-next, demo, tiny")
      ->required();
  command
      ->add_option("--ctx", options->plan.context,
                   "tokens of context of a session (default: the model's, at most 16384)")
      ->check(kCount);
  add_memory(*command, options->plan.memory);
  add_size(*command, "--pool", options->plan.pool, "memory for experts, such as 8G (default: what remains)");
  command->add_option("--sessions", options->plan.sessions, "sessions at a time")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--backend", options->plan.backend, "cpu or scalar")
      ->check(CLI::IsMember({"cpu", "scalar"}))
      ->capture_default_str();
  command
      ->add_option("--experts", options->experts,
                   "bits of the experts once packed (default: as the files have them, else 4)")
      ->check(CLI::IsMember({"4", "3", "2"}));
  command
      ->add_option("--dense", options->dense,
                   "bits of all other weights once packed (default: as the files have them, else 8)")
      ->check(CLI::IsMember({"4", "8", "bf16"}));
  command->add_flag("--json", options->json, "JSON output, sizes in bytes");
  command->callback([options, &invocation] {
    invocation.run = [options] {
      const auto result = plan(*options);
      return result.ok() ? result.value() : fail(result.error());
    };
  });
}

}  // namespace sluice::cli
