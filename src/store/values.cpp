#include "store/values.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/numbers.h"

namespace sluice::store {
namespace {

// Values are converted through a small buffer: no second copy of a large matrix in memory.
constexpr std::size_t kChunk = 16384;

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

float to_float32(Dtype dtype, const std::byte* from) {
  switch (dtype) {
    case Dtype::kBf16:
      return to_float(load<BFloat16>(from));
    case Dtype::kF16:
      return to_float(load<Half>(from));
    case Dtype::kF8E4M3:
      return e4m3_to_float(load<std::uint8_t>(from));
    default:
      return load<float>(from);
  }
}

template <class Take>
Result<void> for_chunks(const TensorRef& tensor, std::uint64_t first, std::size_t count, const Take& take) {
  const auto size = static_cast<std::size_t>(dtype_size(tensor.info->dtype));
  std::vector<std::byte> buffer(std::min(count, kChunk) * size);
  for (std::size_t done = 0; done < count;) {
    const std::size_t n = std::min(count - done, kChunk);
    SLUICE_TRY(tensor.file->read(*tensor.info, (first + done) * size, std::span(buffer).first(n * size)));
    for (std::size_t i = 0; i < n; ++i) {
      SLUICE_TRY(take(done + i, to_float32(tensor.info->dtype, buffer.data() + i * size)));
    }
    done += n;
  }
  return {};
}

}  // namespace

Result<void> need_float(const TensorRef& tensor) {
  const Dtype dtype = tensor.info->dtype;
  if (dtype == Dtype::kBf16 || dtype == Dtype::kF16 || dtype == Dtype::kF32) return {};
  return tensor.wrong(dtype_name(dtype), "BF16, F16 or F32", ErrorCode::kUnsupported);
}

Result<void> read_floats(const TensorRef& tensor, std::uint64_t first, std::span<float> out) {
  if (tensor.info->dtype == Dtype::kF32) {
    return tensor.file->read(*tensor.info, first * sizeof(float), std::as_writable_bytes(out));
  }
  if (tensor.info->dtype != Dtype::kF8E4M3) SLUICE_TRY(need_float(tensor));
  return for_chunks(tensor, first, out.size(), [&](std::size_t i, float value) -> Result<void> {
    out[i] = value;
    return {};
  });
}

Result<void> read_bfloat16(const TensorRef& tensor, std::uint64_t first, std::span<std::uint16_t> out) {
  SLUICE_TRY(need_float(tensor));
  if (tensor.info->dtype == Dtype::kBf16) {
    return tensor.file->read(*tensor.info, first * sizeof(std::uint16_t), std::as_writable_bytes(out));
  }
  return for_chunks(tensor, first, out.size(), [&](std::size_t i, float value) -> Result<void> {
    const BFloat16 rounded = to_bfloat16(value);
    if (to_float(rounded) != value) {
      return tensor.wrong(fmt::format("{} {}", dtype_name(tensor.info->dtype), value),
                          "a value that bfloat16 holds exactly", ErrorCode::kUnsupported);
    }
    out[i] = rounded.bits;
    return {};
  });
}

Result<std::vector<std::int64_t>> read_int64(const TensorRef& tensor) {
  if (tensor.info->dtype != Dtype::kI64) return tensor.wrong(dtype_name(tensor.info->dtype), "I64");
  std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.info->elements()));
  SLUICE_TRY(tensor.file->read(*tensor.info, 0, std::as_writable_bytes(std::span(values))));
  return values;
}

}  // namespace sluice::store
