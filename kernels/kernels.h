// All kernels of all operations.
#pragma once

#include "dialect.h"
#include "embed.h"
#include "experts.h"
#include "gemm.h"
#include "matvec.h"
#include "rows.h"
