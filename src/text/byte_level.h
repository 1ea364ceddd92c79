// The byte-level alphabet of GPT-2: each of the 256 bytes is written as one printable character.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::text {

/// The character that stands for `byte`: itself where printable in Latin-1, else one from U+0100 on.
char32_t byte_level_char(std::uint8_t byte);

/// Bytes spelled by a token as vocabularies write it; nothing if a character is outside the alphabet.
std::optional<std::string> byte_level_decode(std::string_view token);

}  // namespace sluice::text
