#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace sluice::text {
namespace {

constexpr bool is_plain(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
  std::array<char32_t, 256> to_char{};
  std::array<std::int16_t, 512> to_byte{};
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.to_byte) byte = -1;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t code = is_plain(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.to_char[static_cast<std::size_t>(byte)] = code;
    alphabet.to_byte[code] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

char32_t byte_level_char(std::uint8_t byte) {
  return kAlphabet.to_char[byte];
}

std::optional<std::string> byte_level_decode(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const Utf8Step step = utf8_step(token);
    if (step.status != Utf8Status::kOk || step.code >= kAlphabet.to_byte.size()) return std::nullopt;
    const std::int16_t byte = kAlphabet.to_byte[step.code];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
    token.remove_prefix(step.size);
  }
  return bytes;
}

}  // namespace sluice::text
