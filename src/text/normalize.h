// Unicode normalisation form C.
#pragma once

#include <string>
#include <string_view>

namespace sluice::text {

/// NFC of valid UTF-8, in time linear in the text but for runs of combining marks (n log n).
std::string to_nfc(std::string_view valid);

}  // namespace sluice::text
