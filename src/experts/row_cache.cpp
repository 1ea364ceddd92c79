#include "experts/row_cache.h"

#include <algorithm>
#include <cstring>

namespace sluice::experts {
namespace {

constexpr std::uint8_t kLastRank = 3;

}  // namespace

std::uint64_t RowCache::sets_of(std::uint64_t bytes, std::size_t row_bytes, std::int64_t rows) {
  const std::uint64_t set = kWays * (row_bytes + sizeof(std::int64_t) + 1);
  // Twice the sets for all rows: hardly one has to go for another then.
  const std::uint64_t most = 2 * (static_cast<std::uint64_t>(rows) / kWays + 1);
  return std::min({bytes / set, most, std::uint64_t{0xffffffff}});
}

std::uint64_t RowCache::cost(std::uint64_t bytes, std::size_t row_bytes, std::int64_t rows) {
  return sets_of(bytes, row_bytes, rows) * kWays * (row_bytes + sizeof(std::int64_t) + 1);
}

RowCache::RowCache(std::uint64_t bytes, std::size_t row_bytes, std::int64_t rows)
    : row_bytes_(row_bytes),
      sets_(sets_of(bytes, row_bytes, rows)),
      keys_(sets_ * kWays, -1),
      ranks_(sets_ * kWays, kLastRank),
      rows_(sets_ * kWays * row_bytes) {}

std::size_t RowCache::set_of(std::int64_t row) const {
  const std::uint64_t mixed = (static_cast<std::uint64_t>(row) * 0x9E3779B97F4A7C15ULL) >> 32;
  return static_cast<std::size_t>(mixed * sets_ >> 32) * kWays;
}

const std::byte* RowCache::find(std::int64_t row, Expect expect) {
  if (sets_ == 0) return nullptr;
  const std::size_t set = set_of(row);
  for (std::size_t at = set; at < set + kWays; ++at) {
    if (keys_[at] != row) continue;
    std::uint8_t& rank = ranks_[at];
    // A prompt that has a row again makes it likelier, a little.
    if (expect == Expect::kAgain || rank == 0) {
      rank = 0;
    } else {
      --rank;
    }
    return rows_.data() + at * row_bytes_;
  }
  return nullptr;
}

void RowCache::insert(std::int64_t row, std::span<const std::byte> stored, Expect expect) {
  if (sets_ == 0) return;
  const std::size_t set = set_of(row);
  std::size_t place = set;
  for (std::size_t at = set; at < set + kWays; ++at) {
    if (keys_[at] < 0) {
      place = at;
      break;
    }
    if (ranks_[at] > ranks_[place]) place = at;
  }
  if (keys_[place] >= 0) {
    const auto raise = static_cast<std::uint8_t>(kLastRank - ranks_[place]);
    for (std::size_t at = set; at < set + kWays; ++at)
      ranks_[at] = static_cast<std::uint8_t>(ranks_[at] + raise);
  }
  keys_[place] = row;
  ranks_[place] = expect == Expect::kAgain ? kLastRank - 1 : kLastRank;
  std::memcpy(rows_.data() + place * row_bytes_, stored.data(), row_bytes_);
}

}  // namespace sluice::experts
