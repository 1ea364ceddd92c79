// Weight matrices as kernels take them.
#pragma once

#include "backend/gpu/kernels.h"
#include "backend/types.h"

namespace sluice::backend {

kernels::MatrixArgs matrix_args(const Matrix& w);

}  // namespace sluice::backend
