// sluice make-model: models of random weights, for benchmarks and tests.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <memory>

#include "base/json.h"
#include "base/units.h"
#include "command.h"
#include "pack/checkpoint_writer.h"
#include "pack/pack.h"
#include "pack/random_source.h"
#include "pack_options.h"
#include "spec/geometries.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

struct MakeModel {
  std::string shape;
  std::string folder;
  spec::GeometryOverrides overrides;
  std::uint64_t seed = 1;
  std::string precision = "4";
  std::string dense = "8";
  bool checkpoint = false;
  bool sparse = false;
  bool force = false;
  int jobs = 0;
  bool json = false;
};

Result<pack::RandomModel> model_of(const MakeModel& command) {
  pack::RandomModel model;
  const auto geometry = spec::named_geometry(command.shape);
  if (!geometry) {
    return make_error(ErrorCode::kInvalidArgument, "{}: no such shape; {} needed", command.shape,
                      fmt::join(spec::geometry_names(), ", "));
  }
  SLUICE_ASSIGN(model.config, spec::override_geometry(*geometry, command.overrides));
  SLUICE_ASSIGN(model.experts, parse_precisions(command.precision, "--precision"));
  SLUICE_ASSIGN(model.dense, parse_dense(command.dense));
  model.seed = command.seed;
  model.zero_experts = command.sparse;
  return model;
}

Result<void> make_model(const MakeModel& command) {
  SLUICE_ASSIGN(const pack::RandomModel model, model_of(command));
  SLUICE_ASSIGN(const auto source, pack::RandomSource::create(model));
  const auto start = std::chrono::steady_clock::now();
  ProgressBar bar("writing");
  const pack::Progress progress = [&](std::uint64_t done, std::uint64_t total) { bar.update(done, total); };
  std::uint64_t bytes = 0;
  bool was_there = false;
  if (command.checkpoint) {
    pack::CheckpointOptions options;
    options.jobs = command.jobs;
    options.force = command.force;
    options.on_progress = progress;
    SLUICE_ASSIGN(const auto report, pack::write_checkpoint(*source, command.folder, options));
    bytes = report.bytes;
  } else {
    pack::PackOptions options;
    options.keep_experts = true;
    options.dense = store::DenseBits::kSource;
    options.sparse = command.sparse;
    options.jobs = command.jobs;
    options.force = command.force;
    options.source_name = command.shape;
    options.on_progress = progress;
    SLUICE_ASSIGN(const auto report, pack::pack(*source, command.folder, options));
    bytes = report.bytes;
    was_there = report.was_there;
  }
  bar.clear();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (command.json) {
    print_out("{}\n", dump_json({{"model", command.folder},
                                 {"form", command.checkpoint ? "checkpoint" : "store"},
                                 {"bytes", bytes},
                                 {"was_there", was_there},
                                 {"seconds", seconds}},
                                2));
  } else if (was_there) {
    print_out("{}: made already, {}\n", command.folder, format_size(bytes));
  } else {
    print_out("{}: {} made in {:.1f} s\n", command.folder, format_size(bytes), seconds);
  }
  return {};
}

}  // namespace

void add_make_model(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<MakeModel>();
  CLI::App* command = add_command(app, "make-model", "Write a model of random weights, for benchmarks.",
                                  "sluice make-model flash-next big.sluice --layers 4 --ngram-base 20000");
  command->add_option("SHAPE", options->shape, "geometry: flash-next, demo or tiny")->required();
  command->add_option("DIR", options->folder, "new or empty folder")->required();
  command->add_option("--layers", options->overrides.layers, "layers of the trunk");
  command->add_option("--experts", options->overrides.experts, "routed experts of each layer, how many");
  command->add_option("--ngram-base", options->overrides.ngram_base, "rows of an n-gram head, about");
  command->add_option("--seed", options->seed, "what the weights follow from")->capture_default_str();
  auto* precision =
      command
          ->add_option("--precision", options->precision, "bits of the experts, several with commas: 4, 3, 2")
          ->check(precisions())
          ->capture_default_str();
  command->add_option("--dense", options->dense, "bits of the other matrices: 4, 8 or bf16")
      ->check(CLI::IsMember({"4", "8", "bf16"}))
      ->capture_default_str();
  auto* checkpoint = command->add_flag("--checkpoint", options->checkpoint,
                                       "a 4-bit checkpoint in MLX form instead of a packed store");
  checkpoint->excludes(precision);
  // For measuring how long a store of full size takes to open: the experts are zeros and take no disk.
  command->add_flag("--sparse", options->sparse)->excludes(checkpoint)->group("");
  command->add_flag("--force", options->force, "replace a model that is there");
  command->add_option("--jobs", options->jobs, "threads (default: one for each physical core)")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", options->json, "JSON output");
  command->callback([options, &invocation] {
    invocation.run = [options] {
      const auto result = make_model(*options);
      return result.ok() ? kDone : fail(result.error());
    };
  });
}

}  // namespace sluice::cli
