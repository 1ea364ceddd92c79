// y = W x in float32, for matrices with few outputs and for those that the matrix units do not take: routers,
// gates, odd shapes. A SIMD group an output.
//
// Order of summation: spans of 2560 inputs; in a span a lane takes eights of inputs 256 apart, each in order;
// then a butterfly over the lanes; spans in order. Rows of any other shape: matvec_any.
#pragma once

#include "codes.h"
#include "quads.h"

#define SLUICE_PLAIN_KERNELS(X) \
  X(plain_rows)                 \
  X(plain_many)

namespace sluice::kernels {

constexpr u32 kPlainThreads = 256;
constexpr u32 kPlainSimds = kPlainThreads / 32;
constexpr i64 kPlainSpan = 2560;
constexpr u32 kPlainRows = 8;  // of x, for a group

/// Eight weights of a row of plain numbers or of 4 or 8 bits, inputs i .. i + 7; i is a multiple of 8 and the
/// row aligned.
struct Eight {
  f32 v[8];
};
DEVICE_FUNCTION Eight eight_of_bf16(u32x4 bits) {
  const u32 words[4] = {bits.x, bits.y, bits.z, bits.w};
  Eight e;
  UNROLL for (u32 k = 0; k < 4; ++k) {
    e.v[2 * k] = f32_of_bits(words[k] << 16);
    e.v[2 * k + 1] = f32_of_bits(words[k] & 0xffff0000U);
  }
  return e;
}
DEVICE_FUNCTION Eight eight_weights(const Weights& w, i64 output, i64 i) {
  const Global<const u8> row = w.data + output * w.row_bytes;
  Eight e;
  if (w.format == kFormatBf16) return eight_of_bf16(load4(row, i * 2));
  if (w.format == kFormatF32) {
    const f32x4 a = load4f(retype<const f32>(row), i);
    const f32x4 b = load4f(retype<const f32>(row), i + 4);
    e.v[0] = a.x, e.v[1] = a.y, e.v[2] = a.z, e.v[3] = a.w;
    e.v[4] = b.x, e.v[5] = b.y, e.v[6] = b.z, e.v[7] = b.w;
    return e;
  }
  const i64 group = output * w.groups + static_cast<u32>(i) / static_cast<u32>(w.group);
  const f32 s = f32_of_bf16(w.scales[group]);
  const f32 b = f32_of_bf16(w.biases[group]);
  if (w.format == kFormatQ4) {
    const u32 bits = load1(row, i / 2);
    UNROLL for (u32 k = 0; k < 8; ++k) e.v[k] = fma_f32(static_cast<f32>((bits >> (4 * k)) & 15U), s, b);
    return e;
  }
  const u32x2 bits = load2(row, i);
  UNROLL for (u32 k = 0; k < 8; ++k) {
    e.v[k] = fma_f32(static_cast<f32>(((k < 4 ? bits.x : bits.y) >> (8 * (k % 4))) & 255U), s, b);
  }
  return e;
}

DEVICE_FUNCTION f32 eight_dot(const Eight& w, f32x4 a, f32x4 b, f32 sum) {
  sum = fma_f32(w.v[3], a.w, fma_f32(w.v[2], a.z, fma_f32(w.v[1], a.y, fma_f32(w.v[0], a.x, sum))));
  return fma_f32(w.v[7], b.w, fma_f32(w.v[6], b.z, fma_f32(w.v[5], b.y, fma_f32(w.v[4], b.x, sum))));
}

/// One output of one row, the same in every lane.
DEVICE_FUNCTION f32 plain_output(const Thread& t, const Weights& w, i64 output, Global<const f32> x) {
  f32 total = 0;
  NO_UNROLL for (i64 first = 0; first < w.in; first += kPlainSpan) {
    const i64 end = min_of(w.in, first + kPlainSpan);
    f32 sum = 0;
    for (i64 i = first + t.lane * 8; i < end; i += 256) {
      sum = eight_dot(eight_weights(w, output, i), load4f(x, i), load4f(x, i + 4), sum);
    }
    total += simd_sum(t, sum);
  }
  return total;
}

constexpr u32 kPlainSteps = kPlainSpan / 256;  // eights of a lane
/// A lane's bfloat16 weights of `count` inputs of one output, one span at most, read before there is a row
/// for them.
struct PlainSpan {
  u32x4 bits[kPlainSteps];
  DEVICE_FUNCTION void load(const Thread& t, Global<const u8> row, u32 count) {
    UNROLL for (u32 k = 0; k < kPlainSteps; ++k) {
      const u32 i = t.lane * 8 + 256 * k;
      bits[k] = u32x4{0, 0, 0, 0};
      if (i < count) bits[k] = load4(row, i * 2);
    }
  }
  /// The span's part of plain_output for kRows rows, `stride` apart; x lies in memory of either kind.
  template <u32 kRows, class Memory>
  DEVICE_FUNCTION void dot(const Thread& t, Memory x, u32 stride, u32 count, f32* sum) const {
    constexpr u32 kAhead = kRows == 1 ? 2 : 1;
    UNROLL for (u32 r = 0; r < kRows; ++r) sum[r] = 0;
    UNROLL for (u32 first = 0; first < kPlainSteps; first += kAhead) {
      f32x4 a[kAhead][kRows] = {};
      f32x4 b[kAhead][kRows] = {};
      UNROLL for (u32 k = 0; k < kAhead; ++k) {
        const u32 i = t.lane * 8 + 256 * (first + k);
        UNROLL for (u32 r = 0; r < kRows; ++r) {
          if (i >= count) continue;
          a[k][r] = load4f(x, r * stride + i);
          b[k][r] = load4f(x, r * stride + i + 4);
        }
      }
      UNROLL for (u32 k = 0; k < kAhead; ++k) {
        const Eight weights = eight_of_bf16(bits[first + k]);
        UNROLL for (u32 r = 0; r < kRows; ++r) sum[r] = eight_dot(weights, a[k][r], b[k][r], sum[r]);
      }
    }
    UNROLL for (u32 r = 0; r < kRows; ++r) sum[r] = simd_sum(t, sum[r]);
  }
};

struct PlainArgs {
  Weights w;
  Global<const f32> x;  // [rows][in]
  Global<f32> y;        // [rows][out]
  i64 rows;
  i32 silu;
  f32 div;
};
/// Groups (outputs in eights, rows in eights).
KERNEL(plain_rows, PlainArgs, kPlainThreads) {
  KERNEL_THREAD(t);
  const Weights w = args.w;
  const i64 output = static_cast<i64>(t.group_x) * kPlainSimds + t.simd;
  if (output >= w.out) return;
  const i64 end = min_of(args.rows, static_cast<i64>(t.group_y + 1) * kPlainRows);
  NO_UNROLL for (i64 row = static_cast<i64>(t.group_y) * kPlainRows; row < end; ++row) {
    f32 y = plain_output(t, w, output, args.x + row * w.in);
    if (args.silu != 0) y = silu(y / args.div);
    if (t.lane == 0) args.y[row * w.out + output] = y;
  }
}

constexpr u32 kPlainQuad = 4;  // outputs, and rows, of a SIMD group of plain_many
/// The same for many rows: a SIMD group takes four outputs of four rows, so that what it reads is used four
/// times. Groups: eight of these each.
KERNEL_RESIDENT(plain_many, PlainArgs, kPlainThreads, 3) {
  KERNEL_THREAD(t);
  const Weights w = args.w;
  const u32 quads = (static_cast<u32>(w.out) + kPlainQuad - 1) / kPlainQuad;
  const u32 task = t.group_x * kPlainSimds + t.simd;
  const i64 output0 = static_cast<i64>(task % quads) * kPlainQuad;
  const i64 row0 = static_cast<i64>(task / quads) * kPlainQuad;
  if (row0 >= args.rows) return;
  f32 total = 0;  // of row lane / 4, output lane % 4
  for (i64 first = 0; first < w.in; first += kPlainSpan) {
    const i64 end = min_of(w.in, first + kPlainSpan);
    f32 sum[kPlainQuad][kPlainQuad];
    UNROLL for (u32 r = 0; r < kPlainQuad; ++r) {
      UNROLL for (u32 o = 0; o < kPlainQuad; ++o) sum[r][o] = 0;
    }
    for (i64 i = first + t.lane * 8; i < end; i += 256) {
      Eight weights[kPlainQuad];
      UNROLL for (u32 o = 0; o < kPlainQuad; ++o) weights[o] =
          eight_weights(w, min_of(output0 + o, w.out - 1), i);
      UNROLL for (u32 r = 0; r < kPlainQuad; ++r) {
        const i64 at = min_of(row0 + r, args.rows - 1) * w.in + i;
        const f32x4 a = load4f(args.x, at);
        const f32x4 b = load4f(args.x, at + 4);
        UNROLL for (u32 o = 0; o < kPlainQuad; ++o) sum[r][o] = eight_dot(weights[o], a, b, sum[r][o]);
      }
    }
    UNROLL for (u32 r = 0; r < kPlainQuad; ++r) {
      UNROLL for (u32 o = 0; o < kPlainQuad; ++o) {
        const f32 all = simd_sum(t, sum[r][o]);
        if (t.lane == r * kPlainQuad + o) total += all;
      }
    }
  }
  const i64 row = row0 + t.lane / kPlainQuad;
  const i64 output = output0 + t.lane % kPlainQuad;
  if (t.lane >= kPlainQuad * kPlainQuad || row >= args.rows || output >= w.out) return;
  if (args.silu != 0) total = silu(total / args.div);
  args.y[row * w.out + output] = total;
}

}  // namespace sluice::kernels
