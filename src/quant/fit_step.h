// One step of alternating least squares: from the sums over a group's errors to a better scale and bias.
#pragma once

#include "quant/bf16_grid.h"

namespace sluice::quant {

/// A scale and a bias that bfloat16 holds: values are u * scale + bias with the levels u of codes.h.
struct Affine {
  float scale = 0;
  float bias = 0;
};

/// Sums over a group of values x with weights w, each coded to the nearest level u of an Affine;
/// e = x - (u * scale + bias).
struct Sums {
  double e2 = 0;  // w e^2, the error that is minimised
  double e = 0;   // w e
  double eu = 0;  // w e u
  double u = 0;   // w u
  double u2 = 0;  // w u^2
};

/// The rounding of a group's scales and of its biases.
struct Grids {
  Bf16Grid scale, bias;
};

/// u2 * weight - u^2 below this part of u2 * weight: one level has all the weight, as far as sums tell.
constexpr double kOneLevel = 1e-6;

/// The least error that any real scale and bias give with the same codes. `weight` is the sum of w.
inline double least_error(const Sums& sums, double weight) {
  const double det = sums.u2 * weight - sums.u * sums.u;
  if (det <= kOneLevel * sums.u2 * weight) return sums.e2 - sums.e * sums.e / weight;
  const double gain = sums.e * sums.e * sums.u2 - 2 * sums.e * sums.eu * sums.u + sums.eu * sums.eu * weight;
  return sums.e2 - gain / det;
}

/// The stored scale and bias with the least error for the same codes: the least-squares solution with the
/// scale rounded either way and the bias solved for it, or the bias rounded and the scale solved for it.
inline Affine refit(const Sums& sums, double weight, Affine from, const Grids& grids) {
  const double det = sums.u2 * weight - sums.u * sums.u;
  if (det <= kOneLevel * sums.u2 * weight) {
    return {from.scale, grids.bias.nearest(static_cast<double>(from.bias) + sums.e / weight)};
  }
  const auto scale = static_cast<double>(from.scale);
  const auto bias = static_cast<double>(from.bias);
  const double best_scale = scale + (sums.eu * weight - sums.e * sums.u) / det;
  const double best_bias = bias + (sums.e * sums.u2 - sums.eu * sums.u) / det;
  const auto scales = grids.scale.around(best_scale);
  const auto biases = grids.bias.around(best_bias);
  const double per_weight = 1 / weight;
  const double per_u2 = 1 / sums.u2;
  const Affine tries[4] = {
      {scales.inner,
       grids.bias.nearest(bias +
                          (sums.e - (static_cast<double>(scales.inner) - scale) * sums.u) * per_weight)},
      {scales.outer,
       grids.bias.nearest(bias +
                          (sums.e - (static_cast<double>(scales.outer) - scale) * sums.u) * per_weight)},
      {grids.scale.nearest(scale + (sums.eu - (static_cast<double>(biases.inner) - bias) * sums.u) * per_u2),
       biases.inner},
      {grids.scale.nearest(scale + (sums.eu - (static_cast<double>(biases.outer) - bias) * sums.u) * per_u2),
       biases.outer},
  };
  Affine best = tries[0];
  double best_change = 0;
  bool first = true;
  for (const Affine& a : tries) {
    const double ds = static_cast<double>(a.scale) - scale;
    const double db = static_cast<double>(a.bias) - bias;
    const double change = ds * (ds * sums.u2 + 2 * (db * sums.u - sums.eu)) + db * (db * weight - 2 * sums.e);
    if (first || change < best_change) {
      best = a;
      best_change = change;
    }
    first = false;
  }
  return best;
}

}  // namespace sluice::quant
