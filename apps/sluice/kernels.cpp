// sluice kernels: every operation against golden files.
#include <fmt/format.h>

#include <memory>

#include "backend/create.h"
#include "backend/golden/golden.h"
#include "base/json.h"
#include "command.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

struct KernelOptions {
  std::string folder;
  std::string backend = "cpu";
  int threads = 0;
  int device = 0;
  bool exact = true;
  bool json = false;
};

Result<int> kernels(const KernelOptions& options) {
  SLUICE_ASSIGN(const auto backend,
                backend::create_backend(options.backend, {options.threads, options.device, options.exact}));
  SLUICE_ASSIGN(const auto results, backend::run_golden(options.folder, *backend));
  if (results.empty())
    return make_error(ErrorCode::kNotFound, "{}: holds no *.safetensors file", options.folder);
  std::size_t failed = 0;
  Json rows = Json::array();
  for (const auto& r : results) {
    if (!r.pass) ++failed;
    if (options.json) {
      rows.push_back({{"file", r.file},
                      {"operation", r.operation},
                      {"output", r.note},
                      {"error", r.error},
                      {"tolerance", r.tolerance},
                      {"exact", r.exact},
                      {"pass", r.pass}});
    } else {
      print_out("{:<40} {:<18} {:<24} error {:<10.3g} {:<16} {}\n", r.file, r.operation, r.note, r.error,
                r.exact ? "exact" : fmt::format("tolerance {:g}", r.tolerance), r.pass ? "pass" : "FAIL");
    }
  }
  if (options.json) {
    print_out("{}\n", dump_json({{"backend", backend->name()}, {"results", rows}, {"failed", failed}}, 2));
  } else {
    print_out("{} of {} results pass on {}\n", results.size() - failed, results.size(), backend->name());
  }
  return failed == 0 ? kDone : kFailed;
}

}  // namespace

void add_kernels(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<KernelOptions>();
  CLI::App* command = add_command(app, "kernels", "Run every operation of a backend on golden files.",
                                  "sluice kernels --golden tests/data/kernels --backend scalar");
  command->add_option("--golden", options->folder, "folder of golden files")->required();
  add_backend(*command, options->backend, &options->device);
  command->add_option("--threads", options->threads, "threads (default: one for each physical core)")
      ->check(CLI::Range(1, 1024));
  add_exact(*command, options->exact);
  command->add_flag("--json", options->json, "JSON output");
  command->callback([options, &invocation] {
    invocation.run = [options] {
      const auto result = kernels(*options);
      return result.ok() ? result.value() : fail(result.error());
    };
  });
}

}  // namespace sluice::cli
