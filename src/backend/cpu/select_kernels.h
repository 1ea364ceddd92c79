// Exact selection in the one total order (backend.h): larger values first, ties to the lower index, NaN last.
#pragma once

#include <cstdint>

namespace sluice::backend::cpu {

/// Position of the largest element, the lowest on ties; NaN never wins. 0 if all are NaN.
std::int64_t argmax(const float* x, std::int64_t count);

/// One row of router_topk. `scratch`: [n rounded up to 16] floats.
void router_row(const float* logits, std::int64_t n, std::int64_t k, bool renormalise, float* scratch,
                std::uint32_t* index, float* weight);

/// Words of scratch that select_blocks needs for `count` scores.
constexpr std::int64_t select_scratch(std::int64_t count) {
  return 2 * (count + 32) + 1024;
}

/// Sets bit b of mask [ceil(count / 32)] for the k first of scores[0 .. count), k < count.
void select_blocks(const float* scores, std::int64_t count, std::int64_t k, std::uint32_t* scratch,
                   std::uint32_t* mask);

}  // namespace sluice::backend::cpu
