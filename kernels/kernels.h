// All kernels of all operations.
#pragma once

#include "attention.h"
#include "conv.h"
#include "delta.h"
#include "delta_step.h"
#include "dialect.h"
#include "embed.h"
#include "experts.h"
#include "gemm.h"
#if !defined(SLUICE_METAL)
#include "gemm_wide.h"
#else
#define SLUICE_GEMM_WIDE_KERNELS(X)  // none: its matrix units know no such tiles
#endif
#include "group.h"
#include "heads.h"
#include "hyper.h"
#include "matvec.h"
#include "moe.h"
#include "moe_tiles.h"
#include "plain.h"
#include "project.h"
#include "router.h"
#include "rows.h"
#include "select.h"
#include "wide.h"
