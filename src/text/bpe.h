// Byte-pair encoding of one piece: the best-ranked neighbouring pair merges first, leftmost among equals.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice::text {

/// Two neighbouring tokens and the token they become. A rule's place in the list is its rank.
struct MergeRule {
  std::int32_t left = 0;
  std::int32_t right = 0;
  std::int32_t result = 0;
};

/// An immutable table of merges. Safe to use from several threads.
class Bpe {
 public:
  /// `byte_ids[b]` is the token of the single byte b. Of two rules for one pair the later one holds.
  Bpe(const std::array<std::int32_t, 256>& byte_ids, const std::vector<MergeRule>& merges);

  /// Appends the tokens of `piece` to `out`: O(n log n) in its bytes. Pieces stay below 2^32 bytes.
  void encode(std::string_view piece, std::vector<std::int32_t>& out) const;

 private:
  struct Entry {
    std::uint64_t pair = kEmpty;
    std::uint32_t rank = 0;
    std::int32_t result = 0;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // ids are not negative: no pair is all ones

  [[nodiscard]] const Entry* find(std::int32_t left, std::int32_t right) const;

  std::array<std::int32_t, 256> byte_ids_;
  std::vector<Entry> table_;  // open addressing, at most half full
};

}  // namespace sluice::text
