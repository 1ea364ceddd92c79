#include "base/checksum.h"

#include <fmt/format.h>
#if defined(__x86_64__)
// The library's plain entries are built for SSE2 there, and read a quarter of what AVX2 does; these choose by
// the processor.
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include <array>
#include <charconv>
#include <new>

namespace sluice {
namespace {

/// The first call chooses, without a lock: before any thread makes another.
void choose_by_processor() {
  static const bool chosen = [] {
    constexpr std::array<char, 256> kLong{};  // short ones are not chosen for
    return XXH3_64bits_withSeed(kLong.data(), kLong.size(), 0) != 0;
  }();
  (void)chosen;
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed) {
  choose_by_processor();
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Checksum::Checksum(std::uint64_t seed) : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset_withSeed(state_, seed);
}

Checksum::~Checksum() {
  XXH3_freeState(state_);
}

void Checksum::add(std::span<const std::byte> bytes) {
  choose_by_processor();
  XXH3_64bits_update(state_, bytes.data(), bytes.size());
}

std::uint64_t Checksum::value() const {
  return XXH3_64bits_digest(state_);
}

std::string checksum_text(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

std::optional<std::uint64_t> parse_checksum(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || ec != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace sluice
