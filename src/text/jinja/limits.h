// How much a template may use: it comes with a model and its input from users, neither is trusted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::text::jinja {

struct Limits {
  std::size_t output_bytes = std::size_t{64} << 20;
  std::size_t memory_bytes = std::size_t{512} << 20;  // of values alive at once, text being built included
  std::uint64_t steps = 20'000'000;  // nodes evaluated, elements visited, and one for every 64 bytes of text
  int depth = 500;                   // nested evaluation: blocks, expressions and macro calls together
};

inline constexpr std::size_t kMaxSourceBytes = std::size_t{1} << 20;
inline constexpr int kMaxNesting = 100;  // of blocks and brackets in the source
inline constexpr int kMaxChain = 200;    // of operators, filters and attributes in one expression
inline constexpr int kMaxValueDepth = 200;
inline constexpr std::int64_t kMaxRange = 100'000;  // as the sandbox of the reference has it

}  // namespace sluice::text::jinja
