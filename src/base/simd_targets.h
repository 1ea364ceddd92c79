// Which Highway targets SIMD code is compiled for. Include before any Highway header.
#pragma once

// Scalable vectors (SVE) have no compile-time lane count, on which the kernels' order of summation rests.
// On x86 the kernels' sources are compiled with -msse4.2 (sluice_simd_sources), so SSE4 is the least; then
// AVX2 and AVX-512. NEON on Arm.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#define HWY_DISABLE_PCLMUL_AES
