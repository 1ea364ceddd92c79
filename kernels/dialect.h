// The dialect of C++ that kernels are written in: what CUDA, Metal and the emulated device share.
//
// A kernel is one function over one struct of arguments, run by groups of `threads` threads; 32 consecutive
// threads are a SIMD group ("warp", "simdgroup") whose lanes exchange values directly.
//
//   struct SiluRowsArgs { Global<f32> x; i64 count; f32 div; };
//   KERNEL(silu_rows, SiluRowsArgs, 256) {
//     KERNEL_THREAD(t);                       // who am I: t.index in the group, t.lane, t.simd, t.group_x
//     ... SHARED(f32, sums, 8);                   // memory of the group; only in the kernel's own body const
//     i64 i = i64(t.group_x) * 256 + t.index; if (i < args.count) args.x[i] = silu(args.x[i] / args.div);
//   }
//
// Global<T> is an address in device memory, Shared<T> one in the group's memory. Both index and add like
// pointers; wide accesses go through load2, load4, store4. Collectives (simd_*, barrier, mma_*) are called by
// every thread of the SIMD group or the group together. What is not allowed, because some device lacks it:
// recursion, function pointers, lambdas, double, exceptions, global atomics, SHARED outside a kernel's body.
#pragma once

#if defined(SLUICE_METAL)
#include "dialect/metal.h"
#elif defined(__CUDACC__)
#include "dialect/cuda.h"
#else
#include "dialect/emulated.h"
#endif

#include "dialect/math.h"
#if !defined(SLUICE_METAL)
#include "dialect/wide.h"
#endif
