// Remembers the tokens of short pieces: in running text most pieces are words seen before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sluice::text {

/// Not thread-safe. Bounded: once full it keeps what it has.
class PieceCache {
 public:
  static constexpr std::size_t kMaxPieceBytes = 64;
  static constexpr std::size_t kMaxPieces = 1 << 16;

  /// The tokens of `piece`, or nullptr.
  [[nodiscard]] const std::vector<std::int32_t>* find(std::string_view piece) const {
    const auto it = pieces_.find(piece);
    return it == pieces_.end() ? nullptr : &it->second;
  }

  void insert(std::string_view piece, std::vector<std::int32_t> ids) {
    if (piece.size() > kMaxPieceBytes || pieces_.size() >= kMaxPieces) return;
    pieces_.emplace(std::string(piece), std::move(ids));
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>{}(s); }
  };
  std::unordered_map<std::string, std::vector<std::int32_t>, Hash, std::equal_to<>> pieces_;
};

}  // namespace sluice::text
