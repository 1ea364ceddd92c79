// Python's "..." % values.
#pragma once

#include <string_view>

#include "text/jinja/heap.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

/// %s %r %d %i %x %X %o %f %e %g %c %% with flags, width and precision, and %(name)s from a mapping. `values`
/// is a tuple of the arguments or, for a single one, itself.
Value printf_format(Heap& heap, std::string_view format, const Value& values);

}  // namespace sluice::text::jinja
