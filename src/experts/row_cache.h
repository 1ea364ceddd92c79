// Rows of a table too large for memory, as stored, that were wanted lately.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::experts {

/// A cache of fixed size in sets of 16 rows. A row's rank tells how soon it is expected again: 0 soon, 3 not
/// (re-reference interval prediction, Jaleel et al. 2010). Of a full set a row of rank 3 goes; where there is
/// none, all ranks are raised first. Rows of a prefill come in with rank 3, in each other's place, so that a
/// long prompt leaves what decoding comes back to. Belongs to one thread.
class RowCache {
 public:
  enum class Expect { kAgain, kOnce };

  /// The most sets that `bytes` hold, and no more than `rows` need; none is a cache of nothing.
  RowCache(std::uint64_t bytes, std::size_t row_bytes, std::int64_t rows);
  /// Bytes that such a cache takes.
  static std::uint64_t cost(std::uint64_t bytes, std::size_t row_bytes, std::int64_t rows);
  [[nodiscard]] std::uint64_t bytes() const {
    return keys_.size() * sizeof keys_[0] + ranks_.size() + rows_.size();
  }

  /// The stored row, valid until the next insert; nullptr when it is not there.
  const std::byte* find(std::int64_t row, Expect expect);
  /// A row that find() did not find.
  void insert(std::int64_t row, std::span<const std::byte> stored, Expect expect);

 private:
  static constexpr std::size_t kWays = 16;
  static std::uint64_t sets_of(std::uint64_t bytes, std::size_t row_bytes, std::int64_t rows);
  [[nodiscard]] std::size_t set_of(std::int64_t row) const;

  std::size_t row_bytes_;
  std::uint64_t sets_;
  std::vector<std::int64_t> keys_;   // [sets][kWays] row numbers; -1: empty
  std::vector<std::uint8_t> ranks_;  // [sets][kWays]
  std::vector<std::byte> rows_;      // [sets][kWays][row_bytes]
};

}  // namespace sluice::experts
