// All kernels of all operations.
#pragma once

#include "dialect.h"
#include "conv.h"
#include "delta.h"
#include "heads.h"
#include "router.h"
#include "rows.h"
#include "wide.h"
