// Weight matrices as kernels take them.
#pragma once

#include "backend/gpu/kernels.h"
#include "backend/types.h"

namespace sluice::backend {

kernels::Weights weights_of(const Matrix& w);
/// log2 of the blocks of 64 inputs of a group, where it has whole ones: kernels::Weights::per.
std::uint32_t group_shift(int group);

}  // namespace sluice::backend
