// One golden file while it runs: checked inputs, device memory, comparisons.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "backend/golden/golden.h"
#include "store/safetensors.h"

namespace sluice::backend::golden {

using Shape = std::vector<std::int64_t>;

/// The first failure sticks: after it, reads give empty values and comparisons do nothing, so that a case
/// reads top to bottom and asks ok() once, before it calls an operation.
class GoldenCase {
 public:
  GoldenCase(std::string name, const store::SafetensorsFile& file, Backend& backend,
             std::vector<GoldenResult>& results)
      : name_(std::move(name)), file_(file), backend_(backend), results_(results) {}

  [[nodiscard]] bool ok() const { return !failed_; }
  [[nodiscard]] Backend& backend() { return backend_; }

  /// Records a failing result. `operation` may be empty.
  void fail(std::string_view operation, std::string note);
  /// Fails with `note` unless `condition`.
  void require(bool condition, std::string_view note);

  /// Scalar parameters of the file: a positive size, any whole number from 0, a number.
  std::int64_t size(std::string_view key);
  std::int64_t whole(std::string_view key);
  float number(std::string_view key);

  /// Extent of one axis of a tensor.
  std::int64_t extent(std::string_view tensor, std::size_t axis);

  /// A tensor of exactly this shape. T = float converts F32, BF16 and F16; every other T is the stored
  /// type, with uint16_t for the bits of BF16 and F16.
  template <class T>
  std::vector<T> host(std::string_view tensor, const Shape& shape);

  template <class T>
  Dev<T> upload(std::span<const T> values);
  template <class T>
  Dev<T> upload(const std::vector<T>& values) {
    return upload(std::span<const T>(values));
  }
  template <class T>
  Dev<T> input(std::string_view tensor, const Shape& shape) {
    return upload(host<T>(tensor, shape));
  }
  /// Zeroed memory for `count` elements; callers bound `count` by the size of a tensor.
  template <class T>
  Dev<T> memory(std::int64_t count);
  /// Memory for an output that the file has with this shape.
  template <class T>
  Dev<T> output(std::string_view tensor, const Shape& shape);

  template <class T>
  std::vector<T> download(Dev<T> from, std::size_t count);

  /// Weights in_w-like: `codes` u32 [out][in / 8], scales and biases bf16 [out][groups].
  Matrix q4_matrix(std::string_view codes, std::int64_t out, std::int64_t in);
  /// Group size that the shape of in_scales implies.
  int group_of(std::int64_t in);

  /// Compares `values` with the golden tensor by relative L2.
  void expect_close(std::string_view operation, std::string_view tensor, std::span<const float> values,
                    double tolerance);
  void expect_close(std::string_view operation, std::string_view tensor, Dev<float> values, double tolerance);
  /// Compares with the golden tensor bit for bit. `detail` follows its name in the note.
  template <class T>
  void expect_equal(std::string_view operation, std::string_view tensor, Dev<T> values,
                    std::string_view detail = {});

  /// Adds the result of a comparison made by the caller.
  void add_close(std::string_view operation, std::string_view note, double error, double tolerance);
  void add_exact(std::string_view operation, std::string_view note, std::int64_t different);

 private:
  const std::string* parameter(std::string_view key);
  const store::TensorInfo* tensor_info(std::string_view tensor);
  std::vector<std::byte> bytes(std::string_view tensor, const Shape& shape, store::Dtype& dtype);
  std::vector<float> host_floats(std::string_view tensor, const Shape& shape);
  std::byte* device_bytes(std::size_t bytes);

  std::string name_;
  const store::SafetensorsFile& file_;
  Backend& backend_;
  std::vector<GoldenResult>& results_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  bool failed_ = false;
};

/// |values - golden| / |golden|; infinite if anything is NaN.
double relative_error(std::span<const float> values, std::span<const float> golden);

// ---------------------------------------------------------------------------------------------------------

namespace detail {

template <class T>
bool stores(store::Dtype dtype) {
  using store::Dtype;
  if constexpr (std::is_same_v<T, std::uint32_t>) return dtype == Dtype::kU32;
  if constexpr (std::is_same_v<T, std::uint16_t>) return dtype == Dtype::kBf16 || dtype == Dtype::kF16;
  if constexpr (std::is_same_v<T, std::int8_t>) return dtype == Dtype::kI8;
  if constexpr (std::is_same_v<T, std::byte> || std::is_same_v<T, std::uint8_t>) {
    return dtype == Dtype::kU8 || dtype == Dtype::kU32;
  }
  return false;
}

}  // namespace detail

template <class T>
std::vector<T> GoldenCase::host(std::string_view tensor, const Shape& shape) {
  if constexpr (std::is_same_v<T, float>) {
    return host_floats(tensor, shape);
  } else {
    store::Dtype dtype{};
    const std::vector<std::byte> raw = bytes(tensor, shape, dtype);
    if (!ok()) return {};
    if (!detail::stores<T>(dtype)) {
      fail("", fmt::format("{} has type {}", tensor, store::dtype_name(dtype)));
      return {};
    }
    std::vector<T> values(raw.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), raw.data(), values.size() * sizeof(T));
    return values;
  }
}

template <class T>
Dev<T> GoldenCase::upload(std::span<const T> values) {
  std::byte* address = device_bytes(values.size_bytes());
  if (address == nullptr) return {};
  backend_.upload(Dev<std::byte>(address), std::as_bytes(values));
  return Dev<T>(reinterpret_cast<T*>(address));
}

template <class T>
Dev<T> GoldenCase::memory(std::int64_t count) {
  return Dev<T>(reinterpret_cast<T*>(device_bytes(static_cast<std::size_t>(count) * sizeof(T))));
}

template <class T>
Dev<T> GoldenCase::output(std::string_view tensor, const Shape& shape) {
  const auto golden = host<T>(tensor, shape);
  return memory<T>(static_cast<std::int64_t>(golden.size()));
}

template <class T>
std::vector<T> GoldenCase::download(Dev<T> from, std::size_t count) {
  std::vector<T> values(count);
  backend_.download(std::as_writable_bytes(std::span(values)),
                    Dev<const std::byte>(reinterpret_cast<const std::byte*>(from.address())));
  return values;
}

template <class T>
void GoldenCase::expect_equal(std::string_view operation, std::string_view tensor, Dev<T> values,
                              std::string_view detail) {
  const auto* info = tensor_info(tensor);
  if (info == nullptr) return;
  const auto golden = host<T>(tensor, info->shape);
  if (!ok()) return;
  const auto found = download(values, golden.size());
  std::int64_t different = 0;
  for (std::size_t i = 0; i < golden.size(); ++i) {
    if (std::memcmp(&golden[i], &found[i], sizeof(T)) != 0) ++different;
  }
  add_exact(operation, fmt::format("{}{}", tensor, detail), different);
}

}  // namespace sluice::backend::golden
