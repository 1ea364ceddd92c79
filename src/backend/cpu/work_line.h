// Work of unequal pieces, dealt to threads in equal shares.
#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::backend {

constexpr std::int64_t round_up_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Calls fn(begin, end) for blocks of nearly equal size, at most `most`, that make up [0, rows).
template <class Fn>
void for_row_blocks(std::int64_t rows, std::int64_t most, const Fn& fn) {
  const std::int64_t blocks = round_up_div(rows, most);
  for (std::int64_t b = 0; b < blocks; ++b) fn(rows * b / blocks, rows * (b + 1) / blocks);
}

/// Pieces [first, last) side by side: piece i is units(i) units long, each of which costs cost(i); pieces
/// that cost nothing are never touched. A share is a part of this line of equal cost, cut between units.
template <class Units, class Cost>
class WorkLine {
 public:
  WorkLine(std::int64_t first, std::int64_t last, const Units& units, const Cost& cost)
      : first_(first), last_(last), units_(units), cost_(cost) {
    for (std::int64_t i = first; i < last; ++i) total_ += units_(i) * cost_(i);
  }

  [[nodiscard]] std::int64_t total() const { return total_; }

  /// fn(piece, first unit, last unit) for share `part` of `parts`.
  template <class Fn>
  void for_part(std::int64_t part, std::int64_t parts, const Fn& fn) const {
    const std::int64_t from = total_ * part / parts;
    const std::int64_t to = total_ * (part + 1) / parts;
    std::int64_t at = 0;  // where piece i begins
    for (std::int64_t i = first_; i < last_ && at < to; ++i) {
      const std::int64_t c = cost_(i);
      if (c == 0) continue;
      const std::int64_t count = units_(i);
      const std::int64_t begin =
          std::clamp(round_up_div(std::max<std::int64_t>(from - at, 0), c), std::int64_t{0}, count);
      const std::int64_t end = std::clamp(round_up_div(to - at, c), std::int64_t{0}, count);
      if (begin < end) fn(i, begin, end);
      at += count * c;
    }
  }

 private:
  std::int64_t first_, last_;
  Units units_;
  Cost cost_;
  std::int64_t total_ = 0;
};

}  // namespace sluice::backend
