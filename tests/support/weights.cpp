#include "support/weights.h"

#include <gtest/gtest.h>

#include "quant/record.h"

namespace sluice::test {
namespace {

std::vector<float> values_of(const quant::MatrixShape& shape, const quant::MatrixParts& parts) {
  std::vector<float> out(static_cast<std::size_t>(shape.rows * shape.in));
  const auto done = quant::dequantise_rows(shape, parts, 0, out);
  EXPECT_TRUE(done.ok()) << done.error().message;
  return out;
}

}  // namespace

std::vector<float> dense_values(const store::DenseTensor& tensor) {
  quant::MatrixShape shape{tensor.format, 1, 1, tensor.group};
  for (const std::int64_t n : tensor.shape) {
    shape.rows *= shape.in;
    shape.in = n;
  }
  const auto part = [&](std::int64_t offset, std::int64_t bytes) {
    return tensor.buffer.bytes().subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
  };
  return values_of(shape, {part(0, shape.data_bytes()), part(tensor.scales_offset, shape.scale_bytes()),
                           part(tensor.biases_offset, shape.scale_bytes())});
}

std::vector<float> record_values(const spec::RecordLayout& layout, std::span<const std::byte> record,
                                 int which) {
  return values_of(quant::record_matrix(layout, which), quant::record_parts(layout, record, which));
}

}  // namespace sluice::test
