// The one exception of the interpreter. It never leaves this folder: Template turns it into an Error.
#pragma once

#include <utility>

#include "base/result.h"

namespace sluice::text::jinja {

struct Failure {
  Error error;
  bool exact = false;  // the message is the template's own and stays as it is
};

template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{Error{code, fmt::format(format, std::forward<Args>(args)...)}};
}

/// What Python would call a TypeError, ValueError or UndefinedError.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{Error{ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)}};
}

}  // namespace sluice::text::jinja
