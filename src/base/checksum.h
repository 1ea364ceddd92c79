// 64-bit XXH3 checksums, of whole blocks and of streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;

namespace sluice {

/// XXH3 (64 bits) of `bytes` with a seed.
std::uint64_t checksum(std::span<const std::byte> bytes, std::uint64_t seed = 0);

/// The same over bytes that come in parts.
class Checksum {
 public:
  explicit Checksum(std::uint64_t seed = 0);
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;
  void add(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t value() const;

 private:
  XXH3_state_s* state_;
};

/// 16 hexadecimal digits.
std::string checksum_text(std::uint64_t value);
std::optional<std::uint64_t> parse_checksum(std::string_view text);

}  // namespace sluice
