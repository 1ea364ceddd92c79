// All kernels of all operations.
#pragma once

#include "dialect.h"
#include "attention.h"
#include "rows.h"
#include "select.h"
