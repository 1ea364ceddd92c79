// In what precision `pack` stores dense matrices and n-gram rows whose source has real values (BF16, FP8).
#pragma once

#include <cstdint>

#include "spec/formats.h"
#include "store/dense_table.h"

namespace sluice::store {

/// What a user asks for the dense matrices: --dense 4, 8 or bf16.
enum class DenseBits { kQ4, kQ8, kSource };

struct DenseFormat {
  spec::Format format = spec::Format::kBf16;
  int group = 64;  // quantised formats only
};

/// The format of one tensor. Routers and the other matrices of few rows whose outputs steer the rest (gates,
/// decays, stream injection) are never quantised: they are small and a token's path hangs on them. The
/// indexer keeps at least 8 bits. `source` is what is kept where nothing is quantised: kBf16 or kF32.
DenseFormat packed_dense_format(const DenseInfo& info, DenseBits bits, spec::Format source);

/// The layout of n-gram rows: 4 bits in groups of 32, except that what is quantised already, or of a width
/// that groups do not divide, stays.
spec::NgramLayout packed_ngram_layout(const spec::NgramLayout& source);

}  // namespace sluice::store
