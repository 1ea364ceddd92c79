// Text from files, shown to people.
#pragma once

#include <string>
#include <string_view>

namespace sluice::text {

/// One line that cannot steer a terminal: control characters, those of C1 too, become spaces, bytes that are
/// no UTF-8 U+FFFD.
std::string printable(std::string_view text);

}  // namespace sluice::text
