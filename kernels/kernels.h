// All kernels of all operations.
#pragma once

#include "dialect.h"
#include "rows.h"
