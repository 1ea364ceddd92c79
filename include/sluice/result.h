// Errors as values: every function that can fail for a reason outside the program returns a Result.
#pragma once

#include <fmt/format.h>

#include <cassert>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace sluice {

/// What kind of thing went wrong; decides exit codes and, in a server, status codes.
enum class ErrorCode {
  kInvalidArgument,  // the caller asked for something that makes no sense
  kNotFound,         // a file, tensor or name is missing
  kCorrupt,          // a file contradicts itself or its checksum
  kUnsupported,      // well-formed, but nothing here can serve it
  kIo,               // the operating system failed a read or write
  kOutOfMemory,      // more memory needed than allowed or present
  kLimit,            // a bound on input size, output or steps was passed
  kCancelled,
  kDevice,  // a GPU, or what stands for one, failed
};

/// An error names the thing, the value found and the value needed, in one line.
struct Error {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;
};

template <class... Args>
[[nodiscard]] Error make_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error{code, fmt::format(format, std::forward<Args>(args)...)};
}

/// A value or an Error. `Result<void>` is success or an Error.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit by design
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  [[nodiscard]] bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return (assert(ok()), *std::get_if<0>(&state_)); }
  const T& value() const& { return (assert(ok()), *std::get_if<0>(&state_)); }
  T&& value() && { return (assert(ok()), std::move(*std::get_if<0>(&state_))); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  [[nodiscard]] const Error& error() const { return (assert(!ok()), *std::get_if<1>(&state_)); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit by design

  [[nodiscard]] bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  [[nodiscard]] const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

}  // namespace sluice

#define SLUICE_CONCAT_(a, b) a##b
#define SLUICE_CONCAT(a, b) SLUICE_CONCAT_(a, b)

/// Returns the error of a Result<void> expression to the caller, if it has one.
#define SLUICE_TRY(expression)                                                                   \
  do {                                                                                           \
    if (auto sluice_result_ = (expression); !sluice_result_.ok()) return sluice_result_.error(); \
  } while (false)

/// `SLUICE_ASSIGN(auto x, f())`: declares x from the value, or returns the error to the caller.
#define SLUICE_ASSIGN(declaration, expression)                                                               \
  auto SLUICE_CONCAT(sluice_result_, __LINE__) = (expression);                                               \
  if (!SLUICE_CONCAT(sluice_result_, __LINE__).ok()) return SLUICE_CONCAT(sluice_result_, __LINE__).error(); \
  declaration = std::move(SLUICE_CONCAT(sluice_result_, __LINE__)).value()
