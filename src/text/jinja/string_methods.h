// Methods of str.
#pragma once

#include <string_view>

#include "text/jinja/methods.h"

namespace sluice::text::jinja {

/// The method of that name on strings, or nullptr.
MethodFunction find_string_method(std::string_view name);

}  // namespace sluice::text::jinja
