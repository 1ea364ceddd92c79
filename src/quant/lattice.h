// Groups whose values already are evenly spaced, such as those that were quantised before.
#pragma once

#include <optional>
#include <span>

#include "quant/codes.h"
#include "quant/fit_step.h"

namespace sluice::quant {

/// If the differences between values of a group are, nearly, multiples of one step that leaves no more
/// than levels.top of them between `low` and `high` (the least and the largest value, low < high): the
/// stored scale and bias whose levels come closest to the values. A group that is exactly u * scale + bias,
/// rounded to float32, comes back with an Affine that gives every value exactly, in either orientation of
/// the codes and whichever of them occur. The step is the greatest common divisor by Euclid's algorithm on
/// differences; values without one are recognised after a few of them.
std::optional<Affine> find_lattice(std::span<const float> values, float low, float high, const Levels& levels,
                                   const Grids& grids);

}  // namespace sluice::quant
