#include "text/printable.h"

#include "text/utf8_stream.h"

namespace sluice::text {

std::string printable(std::string_view text) {
  Utf8Stream utf8;
  std::string out;
  for (const char c : utf8.push(text)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      out += ' ';
    } else if (byte >= 0x80 && byte < 0xA0 && !out.empty() && out.back() == '\xC2') {
      out.back() = ' ';  // U+0080 to U+009F
    } else {
      out += c;
    }
  }
  if (!utf8.pending().empty()) out += "\uFFFD";
  return out;
}

}  // namespace sluice::text
