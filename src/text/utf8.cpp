#include "text/utf8.h"

#include <cstdint>

namespace sluice::text {

Utf8Step utf8_step(std::string_view bytes) {
  const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  const std::uint8_t lead = at(0);
  if (lead < 0x80) return {Utf8Status::kOk, 1, lead};

  std::size_t tails = 0;
  char32_t code = 0;
  // The second byte has a narrower range after some leads: no overlong forms, surrogates or codes past
  // 10FFFF.
  std::uint8_t low = 0x80;
  std::uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    tails = 1;
    code = lead & 0x1FU;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    tails = 2;
    code = lead & 0x0FU;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    tails = 3;
    code = lead & 0x07U;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Status::kInvalid, 1, 0};
  }
  for (std::size_t i = 1; i <= tails; ++i) {
    if (i == bytes.size()) return {Utf8Status::kCut, i, 0};
    if (at(i) < low || at(i) > high) return {Utf8Status::kInvalid, i, 0};
    code = (code << 6) | (at(i) & 0x3FU);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Status::kOk, tails + 1, code};
}

bool is_valid_utf8(std::string_view bytes) {
  std::size_t i = 0;
  while (i < bytes.size()) {
    if (static_cast<unsigned char>(bytes[i]) < 0x80) {
      ++i;
      continue;
    }
    const Utf8Step step = utf8_step(bytes.substr(i));
    if (step.status != Utf8Status::kOk) return false;
    i += step.size;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    if (step.status == Utf8Status::kOk) {
      out.append(bytes.substr(0, step.size));
    } else {
      out.append(kReplacement);
    }
    bytes.remove_prefix(step.size);
  }
  return out;
}

void append_utf8(std::string& to, char32_t code) {
  const auto push = [&to](char32_t byte) {
    to.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
  };
  if (code < 0x80) {
    push(code);
  } else if (code < 0x800) {
    push(0xC0U | (code >> 6));
    push(0x80U | (code & 0x3FU));
  } else if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
    to.append(kReplacement);
  } else if (code < 0x10000) {
    push(0xE0U | (code >> 12));
    push(0x80U | ((code >> 6) & 0x3FU));
    push(0x80U | (code & 0x3FU));
  } else {
    push(0xF0U | (code >> 18));
    push(0x80U | ((code >> 12) & 0x3FU));
    push(0x80U | ((code >> 6) & 0x3FU));
    push(0x80U | (code & 0x3FU));
  }
}

std::size_t utf8_length(std::string_view valid) {
  std::size_t n = 0;
  for (const char c : valid) n += is_utf8_tail(c) ? 0 : 1;
  return n;
}

bool is_white_space(char32_t code) {
  if (code <= 0x20) return code == 0x20 || (code >= 0x09 && code <= 0x0D);
  switch (code) {
    case 0x85:
    case 0xA0:
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x202F:
    case 0x205F:
    case 0x3000:
      return true;
    default:
      return code >= 0x2000 && code <= 0x200A;
  }
}

char32_t utf8_before(std::string_view valid, std::size_t end) {
  std::size_t start = end - 1;
  while (start > 0 && is_utf8_tail(valid[start])) --start;
  return utf8_step(valid.substr(start, end - start)).code;
}

}  // namespace sluice::text
