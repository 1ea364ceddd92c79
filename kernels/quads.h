// Rows of float32 read four elements at a time.
//
// A row that is not aligned is read by elements and filled up with zeros, so that a kernel has one order of
// summation for both: quad after quad, whatever the alignment.
#pragma once

#include "dialect.h"

namespace sluice::kernels {

/// Elements at .. at + 3 of an array of which those from `end` on do not exist. `wide`: at is a multiple of
/// 4, the array is aligned to 16 bytes, and `end` is not within the four.
DEVICE_FUNCTION f32x4 quad_of(Global<const f32> x, i64 at, i64 end, bool wide) {
  if (wide) return load4f(x, at);
  f32x4 v{0, 0, 0, 0};
  if (at < end) v.x = x[at];
  if (at + 1 < end) v.y = x[at + 1];
  if (at + 2 < end) v.z = x[at + 2];
  if (at + 3 < end) v.w = x[at + 3];
  return v;
}
DEVICE_FUNCTION void set_quad(Global<f32> to, i64 at, i64 end, bool wide, f32x4 v) {
  if (wide) return store4f(to, at, v);
  if (at < end) to[at] = v.x;
  if (at + 1 < end) to[at + 1] = v.y;
  if (at + 2 < end) to[at + 2] = v.z;
  if (at + 3 < end) to[at + 3] = v.w;
}
/// sum + a . b
DEVICE_FUNCTION f32 quad_dot(f32x4 a, f32x4 b, f32 sum) {
  return fma_f32(a.w, b.w, fma_f32(a.z, b.z, fma_f32(a.y, b.y, fma_f32(a.x, b.x, sum))));
}
/// a factor + b, element by element.
DEVICE_FUNCTION f32x4 quad_fma(f32x4 a, f32 factor, f32x4 b) {
  return f32x4{fma_f32(a.x, factor, b.x), fma_f32(a.y, factor, b.y), fma_f32(a.z, factor, b.z),
               fma_f32(a.w, factor, b.w)};
}
DEVICE_FUNCTION f32x4 quad_scale(f32x4 a, f32 factor) {
  return f32x4{a.x * factor, a.y * factor, a.z * factor, a.w * factor};
}
DEVICE_FUNCTION f32x4 quad_multiply(f32x4 a, f32x4 b) {
  return f32x4{a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
}
DEVICE_FUNCTION f32x4 quad_sigmoid(f32x4 a) {
  return f32x4{sigmoid(a.x), sigmoid(a.y), sigmoid(a.z), sigmoid(a.w)};
}
DEVICE_FUNCTION f32x4 quad_silu(f32x4 a) {
  return f32x4{silu(a.x), silu(a.y), silu(a.z), silu(a.w)};
}

}  // namespace sluice::kernels
