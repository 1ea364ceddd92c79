// Weight matrices as kernels take them.
#pragma once

#include "backend/gpu/kernels.h"
#include "backend/types.h"

namespace sluice::backend {

kernels::Weights weights_of(const Matrix& w);

}  // namespace sluice::backend
