// str.replace within the limits of a render.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/jinja/heap.h"

namespace sluice::text::jinja {

/// `s` with `from` replaced by `to`, at most `count` times if that is not negative. An empty `from` is found
/// before every character and at the end.
std::string replaced(Heap& heap, std::string_view s, std::string_view from, std::string_view to,
                     std::int64_t count);

}  // namespace sluice::text::jinja
