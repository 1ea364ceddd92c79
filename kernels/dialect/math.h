// Functions that kernels of every device share, written in the dialect.
#pragma once

namespace sluice::kernels {

DEVICE_FUNCTION f32 f32_of_bf16(u16 x) {
  return f32_of_bits(static_cast<u32>(x) << 16);
}
/// Rounds to nearest even; NaN stays NaN.
DEVICE_FUNCTION u16 bf16_of_f32(f32 x) {
  const u32 bits = bits_of_f32(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<u16>((bits >> 16) | 0x40U);
  return static_cast<u16>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}
#ifndef SLUICE_OWN_HALF2
DEVICE_FUNCTION u32 half2_of_f32(f32 low, f32 high) {
  return static_cast<u32>(half_of_f32(low)) | (static_cast<u32>(half_of_f32(high)) << 16);
}
#endif
DEVICE_FUNCTION bool is_nan(f32 x) {
  return (bits_of_f32(x) & 0x7fffffffU) > 0x7f800000U;
}
DEVICE_FUNCTION f32 sigmoid(f32 x) {
  // exp of a large negative argument would overflow on the other side.
  const f32 e = exp_f32(-abs_f32(x));
  return (x >= 0 ? 1.0F : e) / (1 + e);
}
DEVICE_FUNCTION f32 silu(f32 x) {
  return x * sigmoid(x);
}
/// log(1 + e^x), linear above 20 as in the reference library.
DEVICE_FUNCTION f32 softplus(f32 x) {
  return x > 20 ? x : log1p_f32(exp_f32(x));
}

/// Sums and maxima over the lanes of a SIMD group, the same bits in every lane: a butterfly.
#ifndef SLUICE_OWN_SIMD_SUM
DEVICE_FUNCTION f32 simd_sum(const Thread& t, f32 x) {
  for (u32 mask = 16; mask > 0; mask /= 2) x += simd_shuffle_xor(t, x, mask);
  return x;
}
DEVICE_FUNCTION f32 simd_max(const Thread& t, f32 x) {
  for (u32 mask = 16; mask > 0; mask /= 2) x = max_f32(x, simd_shuffle_xor(t, x, mask));
  return x;
}
#endif
#ifndef SLUICE_OWN_SIMD_MAX_U32
DEVICE_FUNCTION u32 simd_max_u32(const Thread& t, u32 x) {
  for (u32 mask = 16; mask > 0; mask /= 2) x = max_of(x, simd_shuffle_xor(t, x, mask));
  return x;
}
#endif
/// The same over the whole group; `each` holds a float for every SIMD group. Begins and ends with a barrier.
DEVICE_FUNCTION f32 group_sum(const Thread& t, f32 x, Shared<f32> each, u32 simds) {
  x = simd_sum(t, x);
  barrier(t);
  if (t.lane == 0) each[t.simd] = x;
  barrier(t);
  f32 sum = 0;
  for (u32 i = 0; i < simds; ++i) sum += each[i];
  barrier(t);
  return sum;
}
DEVICE_FUNCTION f32 group_max(const Thread& t, f32 x, Shared<f32> each, u32 simds) {
  x = simd_max(t, x);
  barrier(t);
  if (t.lane == 0) each[t.simd] = x;
  barrier(t);
  f32 most = each[0];
  for (u32 i = 1; i < simds; ++i) most = max_f32(most, each[i]);
  barrier(t);
  return most;
}

/// A key that orders floats as unsigned numbers: larger floats have larger keys, NaN has 0, below them all;
/// -0 counts as 0.
DEVICE_FUNCTION u32 order_key(f32 x) {
  if (is_nan(x)) return 0;
  u32 bits = bits_of_f32(x);
  if (bits == 0x80000000U) bits = 0;
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

}  // namespace sluice::kernels
