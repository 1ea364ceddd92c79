// The Gated DeltaNet recurrence, on one thread.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace sluice::backend::cpu {

struct DeltaScan {
  DeltaShape shape;
  const float* qkv = nullptr;
  const float* decay = nullptr;
  const float* beta = nullptr;
  std::int64_t rows = 0;
  const float* state_in = nullptr;
  float* state_out = nullptr;
  float* y = nullptr;
};

/// Largest key_dim the kernel takes.
constexpr std::int64_t kMaxKeyDim = 512;
/// Columns of a head's state that are worked on together; they stay in cache over all rows.
constexpr std::int64_t kDeltaColumns = 64;

/// All rows of columns [first, last) of value head `head`. Row after row: sums over the key dimension run in
/// order in two chains, even and odd.
void delta_columns(const DeltaScan& scan, std::int64_t head, std::int64_t first, std::int64_t last);

}  // namespace sluice::backend::cpu
