// What a person at a terminal sees besides the output: progress, dimmed text, interruption.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::cli {

bool output_is_terminal();
bool errors_are_terminal();

/// A progress bar on standard error for work that takes longer than half a second; silent when standard error
/// is no terminal. Erased when done.
class ProgressBar {
 public:
  explicit ProgressBar(std::string what) : what_(std::move(what)), start_(std::chrono::steady_clock::now()) {}
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(std::uint64_t done, std::uint64_t total);
  void update(std::string_view what, std::uint64_t done, std::uint64_t total);
  void clear();

 private:
  std::string what_;
  std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point drawn_;
  bool shown_ = false;
};

/// While one lives, Ctrl-C sets a flag instead of ending the program; a second one ends it.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  [[nodiscard]] static bool interrupted();
};

/// Writes text to standard output at once, as every command does: main turns a failed write into an error.
/// False when nobody reads it any more.
bool write_out(std::string_view text);

/// Writes text to standard error.
void print_error(std::string_view text);

/// write_out of formatted text.
template <class... Args>
bool print_out(fmt::format_string<Args...> format, Args&&... args) {
  return write_out(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace sluice::cli
