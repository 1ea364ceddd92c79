#include "terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>

namespace sluice::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr auto kPatience = milliseconds(500);
constexpr auto kRedraw = milliseconds(100);
constexpr std::uint64_t kCells = 30;

// Set by a signal, read by any thread.
std::atomic<bool> g_interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal may come while it is read");

void on_interrupt(int) {
  if (g_interrupted.exchange(true)) std::_Exit(130);
}

}  // namespace

bool output_is_terminal() {
  return ::isatty(STDOUT_FILENO) != 0;
}
bool errors_are_terminal() {
  return ::isatty(STDERR_FILENO) != 0;
}

void ProgressBar::update(std::uint64_t done, std::uint64_t total) {
  const auto now = steady_clock::now();
  if (total == 0 || now - start_ < kPatience || (shown_ && now - drawn_ < kRedraw) || !errors_are_terminal())
    return;
  drawn_ = now;
  shown_ = true;
  const std::uint64_t filled = done >= total ? kCells : kCells * done / total;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double left =
      done == 0 ? 0
                : elapsed * static_cast<double>(total - std::min(done, total)) / static_cast<double>(done);
  print_error(fmt::format("\r\033[K{} [{:#<{}}{:.<{}}] {}%  {:.0f} s left", what_, "", filled, "",
                          kCells - filled, 100 * done / total, left));
}

void ProgressBar::update(std::string_view what, std::uint64_t done, std::uint64_t total) {
  what_ = what;
  update(done, total);
}

void ProgressBar::clear() {
  if (shown_) print_error("\r\033[K");
  shown_ = false;
}

InterruptGuard::InterruptGuard() {
  g_interrupted = false;
  std::signal(SIGINT, on_interrupt);
}

InterruptGuard::~InterruptGuard() {
  std::signal(SIGINT, SIG_DFL);
}

bool InterruptGuard::interrupted() {
  return g_interrupted;
}

void print_error(std::string_view text) {
  // Nobody can be told when this fails.
  (void)std::fwrite(text.data(), 1, text.size(), stderr);
  (void)std::fflush(stderr);
}

bool write_out(std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

}  // namespace sluice::cli
