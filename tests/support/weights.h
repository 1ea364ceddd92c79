// Weights as plain numbers, for comparing what was loaded with what was meant.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/formats.h"
#include "store/source.h"

namespace sluice::test {

/// Dequantised values of a dense tensor in float32.
std::vector<float> dense_values(const store::DenseTensor& tensor);

/// Dequantised values of matrix `which` (0 gate, 1 up, 2 down) of a record in any format.
std::vector<float> record_values(const spec::RecordLayout& layout, std::span<const std::byte> record,
                                 int which);

}  // namespace sluice::test
