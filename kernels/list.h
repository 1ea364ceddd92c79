// Every kernel, once: X(name).
#pragma once

#define SLUICE_KERNELS(X)     \
  SLUICE_ROWS_KERNELS(X)      \
  SLUICE_ATTENTION_KERNELS(X) \
  SLUICE_SELECT_KERNELS(X)
