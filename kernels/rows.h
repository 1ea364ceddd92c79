// Row utilities (operations.md).
#pragma once

#include "dialect.h"

#define SLUICE_ROWS_KERNELS(X) \
  X(gather_rows)               \
  X(scatter_add_rows)          \
  X(shared_add_rows)           \
  X(gated_add_rows)            \
  X(silu_rows)                 \
  X(silu_multiply)             \
  X(quantise_q8)               \
  X(argmax_rows)

namespace sluice::kernels {

constexpr u32 kRowThreads = 256;

struct GatherRowsArgs {
  Global<const f32> x;
  Global<const u32> index;  // [rows]
  Global<f32> out;          // [rows][width]
  i64 width;
};
/// Groups (parts of a row, rows).
KERNEL(gather_rows, GatherRowsArgs, kRowThreads) {
  KERNEL_THREAD(t);
  const i64 row = t.group_y;
  const i64 i = static_cast<i64>(t.group_x) * kRowThreads + t.index;
  if (i < args.width) args.out[row * args.width + i] = args.x[args.index[row] * args.width + i];
}

struct QuantiseQ8Args {
  Global<const f32> x;  // [groups][32]
  Global<i8> codes;     // [groups][32]
  Global<u16> scales;   // half [groups]
  i64 groups;
};
/// A SIMD group a group of 32 numbers.
KERNEL(quantise_q8, QuantiseQ8Args, kRowThreads) {
  KERNEL_THREAD(t);
  const i64 group = static_cast<i64>(t.group_x) * (kRowThreads / 32) + t.simd;
  const bool present = group < args.groups;
  const f32 x = present ? f32(args.x[group * 32 + t.lane]) : 0.0F;
  const bool finite = (bits_of_f32(x) & 0x7fffffffU) < 0x7f800000U;
  const f32 most = simd_max(t, finite ? abs_f32(x) : 0.0F);
  const bool broken = simd_ballot(t, !finite) != 0;
  const f32 wanted = most / 127.0F;
  const u16 scale = broken ? static_cast<u16>(0x7e00U) : half_of_f32(wanted < 65504.0F ? wanted : 65504.0F);
  const f32 by = f32_of_half(scale);
  i32 code = 0;
  if (by > 0) {
    f32 number = x / by;
    if (number > 127.0F) number = 127.0F;
    if (number < -127.0F) number = -127.0F;
    // Ends up where a float has no bits behind the point: the nearest, ties to even.
    constexpr f32 kShift = 12582912.0F;
    code = static_cast<i32>((number + kShift) - kShift);
  }
  if (!present) return;
  args.codes[group * 32 + t.lane] = static_cast<i8>(code);
  if (t.lane == 0) args.scales[group] = scale;
}

struct ScatterAddRowsArgs {
  Global<const f32> y;       // [rows][width]
  Global<const u32> index;   // [rows]
  Global<const f32> weight;  // [rows]
  Global<f32> out;
  i64 rows, width;
};
/// A thread an element of all rows, in ascending row: rows may share a place.
KERNEL(scatter_add_rows, ScatterAddRowsArgs, kRowThreads) {
  KERNEL_THREAD(t);
  const i64 i = static_cast<i64>(t.group_x) * kRowThreads + t.index;
  if (i >= args.width) return;
  for (i64 row = 0; row < args.rows; ++row) {
    const i64 to = args.index[row] * args.width + i;
    args.out[to] = fma_f32(args.weight[row], args.y[row * args.width + i], args.out[to]);
  }
}

struct SharedAddRowsArgs {
  Global<const f32> x, y;  // [rows][width]
  Global<const u16> gate;  // bf16 [width]
  Global<f32> out;         // [rows][width]
  i64 width;
};
/// A group a row.
KERNEL(shared_add_rows, SharedAddRowsArgs, kRowThreads) {
  KERNEL_THREAD(t);
  SHARED(f32, each, kRowThreads / 32);
  const i64 first = static_cast<i64>(t.group_x) * args.width;
  f32 sum = 0;
  for (i64 i = t.index; i < args.width; i += kRowThreads) {
    sum = fma_f32(f32_of_bf16(args.gate[i]), args.x[first + i], sum);
  }
  const f32 factor = sigmoid(group_sum(t, sum, each, kRowThreads / 32));
  for (i64 i = t.index; i < args.width; i += kRowThreads) {
    args.out[first + i] = fma_f32(factor, args.y[first + i], args.out[first + i]);
  }
}

struct GatedAddRowsArgs {
  Global<const f32> y;     // [rows][width]
  Global<const f32> gate;  // [rows]
  Global<f32> out;         // [rows][width]
  i64 width;
};
/// Groups (parts of a row, rows).
KERNEL(gated_add_rows, GatedAddRowsArgs, kRowThreads) {
  KERNEL_THREAD(t);
  const i64 row = t.group_y;
  const i64 i = static_cast<i64>(t.group_x) * kRowThreads + t.index;
  if (i >= args.width) return;
  const i64 at = row * args.width + i;
  args.out[at] = fma_f32(sigmoid(args.gate[row]), args.y[at], args.out[at]);
}

struct SiluRowsArgs {
  Global<f32> x;
  i64 count;
  f32 div;
};
KERNEL(silu_rows, SiluRowsArgs, kRowThreads) {
  KERNEL_THREAD(t);
  const i64 i = static_cast<i64>(t.group_x) * kRowThreads + t.index;
  if (i < args.count) args.x[i] = silu(args.x[i] / args.div);
}

struct SiluMultiplyArgs {
  Global<const f32> gate, up;
  Global<f32> out;  // may be either of them
  i64 count;
};
KERNEL(silu_multiply, SiluMultiplyArgs, kRowThreads) {
  KERNEL_THREAD(t);
  const i64 i = static_cast<i64>(t.group_x) * kRowThreads + t.index;
  if (i < args.count) args.out[i] = silu(args.gate[i]) * args.up[i];
}

struct ArgmaxRowsArgs {
  Global<const f32> x;  // [rows][width]
  Global<i32> index;    // [rows]
  i64 width;
};
constexpr u32 kArgmaxThreads = 1024;
constexpr u32 kArgmaxAhead = 16;  // values that a thread reads before it looks at any
/// A group a row. The larger value first, then the lower index; NaN after every number.
KERNEL(argmax_rows, ArgmaxRowsArgs, kArgmaxThreads) {
  KERNEL_THREAD(t);
  SHARED(u32, keys, kArgmaxThreads / 32);
  SHARED(u32, places, kArgmaxThreads / 32);
  const i64 first = static_cast<i64>(t.group_x) * args.width;
  u32 key = 0;
  u32 place = 0;
  const u32 width = static_cast<u32>(args.width);
  const Global<const f32> x = args.x + first;
  NO_UNROLL for (u32 i = t.index; i < width; i += kArgmaxAhead * kArgmaxThreads) {
    f32 ahead[kArgmaxAhead];
    UNROLL for (u32 k = 0; k < kArgmaxAhead; ++k) ahead[k] = x[min_of(i + k * kArgmaxThreads, width - 1)];
    UNROLL for (u32 k = 0; k < kArgmaxAhead; ++k) {
      const u32 now = order_key(ahead[k]);
      const u32 at = i + k * kArgmaxThreads;
      if (at < width && now > key) {
        key = now;
        place = at;
      }
    }
  }
  for (u32 mask = 16; mask > 0; mask /= 2) {
    const u32 other = simd_shuffle_xor(t, key, mask);
    const u32 at = simd_shuffle_xor(t, place, mask);
    if (other > key || (other == key && at < place)) {
      key = other;
      place = at;
    }
  }
  if (t.lane == 0) {
    keys[t.simd] = key;
    places[t.simd] = place;
  }
  barrier(t);
  if (t.index != 0) return;
  for (u32 i = 1; i < kArgmaxThreads / 32; ++i) {
    if (keys[i] > key || (keys[i] == key && places[i] < place)) {
      key = keys[i];
      place = places[i];
    }
  }
  args.index[t.group_x] = key == 0 ? 0 : static_cast<i32>(place);
}

}  // namespace sluice::kernels
