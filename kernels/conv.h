// The causal convolution over a ring of past positions (model.md 3.8, 3.10).
//
// An element is the sum of its taps from the oldest to the newest; positions before the start are left out.
#pragma once

#include "quads.h"

#define SLUICE_CONV_KERNELS(X) \
  X(conv_rows)                 \
  X(conv_keep)

namespace sluice::kernels {

constexpr u32 kConvThreads = 64;
constexpr i64 kConvRows = 16;  // of a thread: neighbouring rows share what they read
constexpr u32 kConvTaps = 4;   // as many as a thread keeps in registers

struct ConvArgs {
  Global<const f32> in;   // [rows][channels]
  Global<const f32> w;    // [channels][taps]
  Global<f32> ring;       // [span][channels]
  Global<const f32> add;  // [rows][channels] or null
  Global<f32> out;        // [rows][channels]
  i64 channels, taps, dilation, span, base, rows;
  u32 keeps;    // one group has all rows of a channel: it also brings the ring up to date
  u32 aligned;  // also that there are kConvTaps taps
};

/// Tap `tap` of four channels.
DEVICE_FUNCTION f32x4 conv_weight(const ConvArgs& args, i64 channel, i64 tap) {
  f32x4 v{0, 0, 0, 0};
  const Global<const f32> w = args.w + channel * args.taps + tap;
  v.x = w[0];
  if (channel + 1 < args.channels) v.y = w[args.taps];
  if (channel + 2 < args.channels) v.z = w[2 * args.taps];
  if (channel + 3 < args.channels) v.w = w[3 * args.taps];
  return v;
}

/// sum + weight * what lies at `position`, for four channels.
DEVICE_FUNCTION f32x4 conv_tap(const ConvArgs& args, i64 channel, i64 position, f32x4 weight, f32x4 sum) {
  if (position < 0) return sum;
  const bool aligned = args.aligned != 0;
  f32x4 x;
  if (position >= args.base) {
    x = quad_of(args.in + (position - args.base) * args.channels, channel, args.channels, aligned);
  } else {
    const i64 place = static_cast<u32>(position) % static_cast<u32>(args.span);
    x = quad_of(args.ring + place * args.channels, channel, args.channels, aligned);
  }
  return f32x4{fma_f32(weight.x, x.x, sum.x), fma_f32(weight.y, x.y, sum.y), fma_f32(weight.z, x.z, sum.z),
               fma_f32(weight.w, x.w, sum.w)};
}

DEVICE_FUNCTION void conv_write(const ConvArgs& args, i64 row, i64 channel, f32x4 sum) {
  const bool aligned = args.aligned != 0;
  f32x4 v = quad_silu(sum);
  if (args.add != nullptr) {
    v = quad_fma(v, 1, quad_of(args.add + row * args.channels, channel, args.channels, aligned));
  }
  set_quad(args.out + row * args.channels, channel, args.channels, aligned, v);
}

DEVICE_FUNCTION void conv_keep_row(const ConvArgs& args, i64 row, i64 channel) {
  const bool aligned = args.aligned != 0;
  const i64 place = static_cast<u32>(args.base + row) % static_cast<u32>(args.span);
  set_quad(args.ring + place * args.channels, channel, args.channels, aligned,
           quad_of(args.in + row * args.channels, channel, args.channels, aligned));
}

/// Groups (parts of the channels, blocks of kConvRows rows); a thread four channels.
KERNEL(conv_rows, ConvArgs, kConvThreads) {
  KERNEL_THREAD(t);
  const i64 channel = 4 * (static_cast<i64>(t.group_x) * kConvThreads + t.index);
  if (channel >= args.channels) return;
  const i64 first = static_cast<i64>(t.group_y) * kConvRows;
  const i64 last = min_of(first + kConvRows, args.rows);
  if (args.aligned != 0) {
    // Four channels' taps lie side by side: four reads, turned about.
    const f32x4 a = load4f(args.w, channel * kConvTaps);
    const f32x4 b = load4f(args.w, (channel + 1) * kConvTaps);
    const f32x4 c = load4f(args.w, (channel + 2) * kConvTaps);
    const f32x4 d = load4f(args.w, (channel + 3) * kConvTaps);
    const f32x4 w0{a.x, b.x, c.x, d.x};
    const f32x4 w1{a.y, b.y, c.y, d.y};
    const f32x4 w2{a.z, b.z, c.z, d.z};
    const f32x4 w3{a.w, b.w, c.w, d.w};
    for (i64 row = first; row < last; ++row) {
      const i64 position = args.base + row;
      f32x4 sum{0, 0, 0, 0};
      sum = conv_tap(args, channel, position - 3 * args.dilation, w0, sum);
      sum = conv_tap(args, channel, position - 2 * args.dilation, w1, sum);
      sum = conv_tap(args, channel, position - args.dilation, w2, sum);
      sum = conv_tap(args, channel, position, w3, sum);
      conv_write(args, row, channel, sum);
    }
  } else {
    for (i64 row = first; row < last; ++row) {
      f32x4 sum{0, 0, 0, 0};
      for (i64 tap = 0; tap < args.taps; ++tap) {
        const i64 position = args.base + row - (args.taps - 1 - tap) * args.dilation;
        sum = conv_tap(args, channel, position, conv_weight(args, channel, tap), sum);
      }
      conv_write(args, row, channel, sum);
    }
  }
  if (args.keeps == 0) return;
  // Only this thread reads the ring's part of these channels, and it has read what it needs.
  for (i64 row = max_of(args.rows - args.span, static_cast<i64>(0)); row < args.rows; ++row) {
    conv_keep_row(args, row, channel);
  }
}

/// Groups (parts of the channels, kept rows): the ring after many rows.
KERNEL(conv_keep, ConvArgs, kConvThreads) {
  KERNEL_THREAD(t);
  const i64 channel = 4 * (static_cast<i64>(t.group_x) * kConvThreads + t.index);
  if (channel >= args.channels) return;
  conv_keep_row(args, max_of(args.rows - args.span, static_cast<i64>(0)) + t.group_y, channel);
}

}  // namespace sluice::kernels
