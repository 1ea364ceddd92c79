// All kernels of all operations.
#pragma once

#include "attention.h"
#include "conv.h"
#include "delta.h"
#include "dialect.h"
#include "embed.h"
#include "experts.h"
#include "gemm.h"
#include "group.h"
#include "heads.h"
#include "matvec.h"
#include "router.h"
#include "rows.h"
#include "select.h"
#include "wide.h"
