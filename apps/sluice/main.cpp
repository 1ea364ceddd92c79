// sluice: run, talk to and look into qwen4_exp models.
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>

#include "command.h"

int main(int argc, char** argv) {
  using namespace sluice::cli;
  // A reader that goes away (sluice ... | head) shows as a failed write, not as a signal.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  // A standard stream closed by the caller must not become the number of a model's file.
  while (true) {
    const int fd = ::open("/dev/null", O_RDWR);
    if (fd < 0 || fd > 2) {
      if (fd > 2) ::close(fd);
      break;
    }
  }
  CLI::App app{"Sluice runs Qwen3.8-Flash-Next (qwen4_exp) models on one machine."};
  app.set_version_flag("--version", "sluice " SLUICE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Example:\n  sluice run models/demo \"Define glacier.\"\n\n`sluice COMMAND --help` tells more about "
      "one.");
  Invocation invocation;
  add_run(app, invocation);
  add_chat(app, invocation);
  add_text_tools(app, invocation);
  add_logits(app, invocation);
  add_kernels(app, invocation);
  add_inspect(app, invocation);
  add_eval(app, invocation);
  add_pack(app, invocation);
  add_pull(app, invocation);
  add_verify(app, invocation);
  add_make_model(app, invocation);
  add_plan(app, invocation);
  add_stats(app, invocation);
  add_bench(app, invocation);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success))
      return app.exit(e);  // --help, --version
    const auto chosen = app.get_subcommands();
    const std::string command = chosen.empty() ? "" : chosen.front()->get_name() + " ";
    const auto extra = app.remaining();
    const std::string wrong =
        chosen.empty() && !extra.empty() ? "no such command: " + extra.front() : e.what();
    (void)fail(sluice::make_error(sluice::ErrorCode::kInvalidArgument, "{} (sluice {}--help tells more)",
                                  wrong, command));
    return kUsage;
  } catch (const std::exception& e) {
    return fail(sluice::make_error(sluice::ErrorCode::kInvalidArgument, "command line: {}", e.what()));
  }
  // Errors come as values; what can still be thrown is the want of memory in the middle of something.
  int code = kFailed;
  try {
    code = invocation.run ? invocation.run() : kUsage;
  } catch (const std::bad_alloc&) {
    return fail(sluice::make_error(sluice::ErrorCode::kOutOfMemory, "out of memory"));
  } catch (const std::exception& e) {
    return fail(sluice::make_error(sluice::ErrorCode::kIo, "{}", e.what()));
  }
  if ((std::fflush(stdout) != 0 || std::ferror(stdout) != 0) && code == kDone) {
    return fail(sluice::make_error(sluice::ErrorCode::kIo, "standard output: the text could not be written"));
  }
  return code;
}
