// UTF-8 as it arrives: valid, broken, or cut in the middle of a character.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::text {

enum class Utf8Status {
  kOk,
  kInvalid,  // `size` bytes can never become a character, whatever follows
  kCut,      // all bytes there are begin a character whose rest is missing
};

/// One step of decoding: the code point (kOk only) and the bytes it covers.
struct Utf8Step {
  Utf8Status status = Utf8Status::kInvalid;
  std::size_t size = 0;
  char32_t code = 0;
};

/// Looks at the start of `bytes` (not empty). Invalid bytes are taken as maximal subparts, so that one
/// U+FFFD for each step gives what Python's errors="replace" gives.
Utf8Step utf8_step(std::string_view bytes);

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_valid_utf8(std::string_view bytes);

/// A copy with each invalid or cut sequence replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view bytes);

/// Appends `code`; a surrogate or a value above U+10FFFF becomes U+FFFD.
void append_utf8(std::string& to, char32_t code);

/// Bytes of the character whose first byte is `lead`; only for valid UTF-8.
inline std::size_t utf8_size(char lead) {
  const auto b = static_cast<unsigned char>(lead);
  if (b < 0x80) return 1;
  if (b < 0xE0) return 2;
  return b < 0xF0 ? 3 : 4;
}

inline bool is_utf8_tail(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

/// Code points in valid UTF-8.
std::size_t utf8_length(std::string_view valid);

/// The White_Space property.
bool is_white_space(char32_t code);

/// The code point that ends just before byte `end` of valid UTF-8 (`end` > 0).
char32_t utf8_before(std::string_view valid, std::size_t end);

}  // namespace sluice::text
