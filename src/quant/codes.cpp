#include "quant/codes.h"

#include <bit>
#include <cstring>

namespace sluice::quant {
namespace {

using spec::Format;

static_assert(std::endian::native == std::endian::little, "words of codes are little-endian");

template <class T>
T load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void store(T value, void* to) {
  std::memcpy(to, &value, sizeof value);
}

// Eight codes, a byte each, as eight nibbles.
std::uint32_t gather_nibbles(std::uint64_t bytes) {
  std::uint64_t x = bytes & 0x0f0f0f0f0f0f0f0fU;
  x = (x | x >> 4) & 0x00ff00ff00ff00ffU;
  x = (x | x >> 8) & 0x0000ffff0000ffffU;
  return static_cast<std::uint32_t>(x | x >> 16);
}

std::uint64_t spread_nibbles(std::uint32_t nibbles) {
  std::uint64_t x = nibbles;
  x = (x | x << 16) & 0x0000ffff0000ffffU;
  x = (x | x << 8) & 0x00ff00ff00ff00ffU;
  return (x | x << 4) & 0x0f0f0f0f0f0f0f0fU;
}

// In operations.md code c of a chunk goes to byte i % 4 at position p = i / 4 + (2 if c is odd), i = c % 16
// / 2. Of 4-bit codes, i is the byte of a half chunk and the odd code its upper nibble. So a word of low-bit
// codes takes its four bytes from the two words of a half: positions 0 and 2 from the nibbles of the first, 1
// and 3 from those of the second, and each pair of bits is already at its place or two bits above.

// The upper two bits of sixteen 4-bit codes.
std::uint32_t upper_bits(std::uint32_t first, std::uint32_t second) {
  return (first >> 2 & 0x33333333U) | (second & 0xccccccccU);
}

// The bit below them, four a byte, at positions 0 to 3.
std::uint32_t third_bits(std::uint32_t first, std::uint32_t second) {
  return (first >> 1 & 0x01010101U) | (second & 0x02020202U) | (first >> 3 & 0x04040404U) |
         (second >> 2 & 0x08080808U);
}

template <bool kThreeBits>
void truncate_chunk(const std::byte* q4, std::byte* out) {
  const auto a = load<std::uint32_t>(q4);
  const auto b = load<std::uint32_t>(q4 + 4);
  const auto c = load<std::uint32_t>(q4 + 8);
  const auto d = load<std::uint32_t>(q4 + 12);
  store(upper_bits(a, b), out);
  store(upper_bits(c, d), out + 4);
  if constexpr (kThreeBits) store(third_bits(a, b) | third_bits(c, d) << 4, out + 8);
}

// The smallest 4-bit codes that truncate to a chunk.
template <bool kThreeBits>
void extend_chunk(const std::byte* low, std::byte* q4) {
  for (unsigned half = 0; half < 2; ++half) {
    const auto upper = load<std::uint32_t>(low + 4 * half);
    std::uint32_t first = (upper & 0x33333333U) << 2;
    std::uint32_t second = upper & 0xccccccccU;
    if constexpr (kThreeBits) {
      const std::uint32_t third = load<std::uint32_t>(low + 8) >> (4 * half);
      first |= (third & 0x01010101U) << 1 | (third & 0x04040404U) << 3;
      second |= (third & 0x02020202U) | (third & 0x08080808U) << 2;
    }
    store(first, q4 + 8 * half);
    store(second, q4 + 8 * half + 4);
  }
}

template <bool kThreeBits>
constexpr std::size_t kLowChunkBytes = kThreeBits ? 12 : 8;

template <bool kThreeBits>
void truncate_all(std::span<const std::byte> q4, std::byte* out) {
  for (std::size_t c = 0; c < q4.size() / 16; ++c) {
    truncate_chunk<kThreeBits>(q4.data() + 16 * c, out + kLowChunkBytes<kThreeBits> * c);
  }
}

// A low-bit code is a 4-bit code shifted up, truncated.
template <bool kThreeBits>
void pack_low(std::span<const std::uint8_t> codes, std::byte* out) {
  constexpr int kShift = kThreeBits ? 1 : 2;
  for (std::size_t c = 0; c < codes.size() / kCodeChunk; ++c) {
    std::byte q4[16];
    for (std::size_t i = 0; i < 4; ++i) {
      const auto eight = load<std::uint64_t>(codes.data() + kCodeChunk * c + 8 * i);
      store(gather_nibbles(eight << kShift), q4 + 4 * i);
    }
    truncate_chunk<kThreeBits>(q4, out + kLowChunkBytes<kThreeBits> * c);
  }
}

template <bool kThreeBits>
void unpack_low(const std::byte* packed, std::span<std::uint8_t> codes) {
  constexpr int kShift = kThreeBits ? 1 : 2;
  for (std::size_t c = 0; c < codes.size() / kCodeChunk; ++c) {
    std::byte q4[16];
    extend_chunk<kThreeBits>(packed + kLowChunkBytes<kThreeBits> * c, q4);
    for (std::size_t i = 0; i < 4; ++i) {
      store(spread_nibbles(load<std::uint32_t>(q4 + 4 * i)) >> kShift, codes.data() + kCodeChunk * c + 8 * i);
    }
  }
}

}  // namespace

void pack_codes(Format format, std::span<const std::uint8_t> codes, std::span<std::byte> out) {
  assert(codes.size() % kCodeChunk == 0 && out.size() == packed_bytes(format, codes.size()));
  switch (format) {
    case Format::kQ8:
      if (!codes.empty()) std::memcpy(out.data(), codes.data(), codes.size());
      break;
    case Format::kQ4:
      for (std::size_t i = 0; i < codes.size(); i += 8) {
        store(gather_nibbles(load<std::uint64_t>(codes.data() + i)), out.data() + i / 2);
      }
      break;
    case Format::kQ3:
      pack_low<true>(codes, out.data());
      break;
    case Format::kQ2:
      pack_low<false>(codes, out.data());
      break;
    case Format::kF32:
    case Format::kBf16:
      assert(false && "float formats have no codes");
  }
}

void unpack_codes(Format format, std::span<const std::byte> packed, std::span<std::uint8_t> codes) {
  assert(codes.size() % kCodeChunk == 0 && packed.size() == packed_bytes(format, codes.size()));
  switch (format) {
    case Format::kQ8:
      if (!codes.empty()) std::memcpy(codes.data(), packed.data(), codes.size());
      break;
    case Format::kQ4:
      for (std::size_t i = 0; i < codes.size(); i += 8) {
        store(spread_nibbles(load<std::uint32_t>(packed.data() + i / 2)), codes.data() + i);
      }
      break;
    case Format::kQ3:
      unpack_low<true>(packed.data(), codes);
      break;
    case Format::kQ2:
      unpack_low<false>(packed.data(), codes);
      break;
    case Format::kF32:
    case Format::kBf16:
      assert(false && "float formats have no codes");
  }
}

void truncate_codes(Format low, std::span<const std::byte> q4, std::span<std::byte> out) {
  assert((low == Format::kQ3 || low == Format::kQ2) && q4.size() % 16 == 0);
  assert(out.size() == packed_bytes(low, q4.size() * 2));
  if (low == Format::kQ3) {
    truncate_all<true>(q4, out.data());
  } else {
    truncate_all<false>(q4, out.data());
  }
}

}  // namespace sluice::quant
