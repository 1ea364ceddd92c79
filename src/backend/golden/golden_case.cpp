#include "backend/golden/golden_case.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "base/numbers.h"

namespace sluice::backend::golden {

namespace {

// Sizes of golden files are small; the bound keeps products of a few of them inside 64 bits.
constexpr std::int64_t kMostWhole = std::int64_t{1} << 20;

}  // namespace

double relative_error(std::span<const float> values, std::span<const float> golden) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < golden.size(); ++i) {
    const double d = static_cast<double>(values[i]) - golden[i];
    difference += d * d;
    norm += static_cast<double>(golden[i]) * golden[i];
  }
  const double error = std::sqrt(norm > 0 ? difference / norm : difference);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

void GoldenCase::fail(std::string_view operation, std::string note) {
  if (failed_) return;
  failed_ = true;
  results_.push_back({name_, std::string(operation), 0, 0, false, false, std::move(note)});
}

void GoldenCase::require(bool condition, std::string_view note) {
  if (!condition) fail("", std::string(note));
}

const std::string* GoldenCase::parameter(std::string_view key) {
  if (failed_) return nullptr;
  const auto& metadata = file_.header().metadata;
  const auto found = metadata.find(std::string(key));
  if (found == metadata.end()) {
    fail("", fmt::format("no parameter {}", key));
    return nullptr;
  }
  return &found->second;
}

std::int64_t GoldenCase::whole(std::string_view key) {
  const std::string* text = parameter(key);
  if (text == nullptr) return 0;
  std::int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc{} || stop != end || value < 0 || value > kMostWhole) {
    fail("", fmt::format("parameter {} is \"{}\", needs a whole number up to {}", key, *text, kMostWhole));
    return 0;
  }
  return value;
}

std::int64_t GoldenCase::size(std::string_view key) {
  const std::int64_t value = whole(key);
  if (ok() && value == 0) fail("", fmt::format("parameter {} is 0", key));
  return value;
}

float GoldenCase::number(std::string_view key) {
  const std::string* text = parameter(key);
  if (text == nullptr) return 0;
  double value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc{} || stop != end || !std::isfinite(value)) {
    fail("", fmt::format("parameter {} is \"{}\", needs a number", key, *text));
    return 0;
  }
  return static_cast<float>(value);
}

const store::TensorInfo* GoldenCase::tensor_info(std::string_view tensor) {
  if (failed_) return nullptr;
  const auto* info = file_.find(tensor);
  if (info == nullptr) fail("", fmt::format("no tensor {}", tensor));
  return info;
}

std::int64_t GoldenCase::extent(std::string_view tensor, std::size_t axis) {
  const auto* info = tensor_info(tensor);
  if (info == nullptr) return 0;
  if (axis >= info->shape.size() || info->shape[axis] < 1 || info->shape[axis] > kMostWhole) {
    fail("", fmt::format("{} has shape {}", tensor, store::shape_text(info->shape)));
    return 0;
  }
  return info->shape[axis];
}

std::vector<std::byte> GoldenCase::bytes(std::string_view tensor, const Shape& shape, store::Dtype& dtype) {
  const auto* info = tensor_info(tensor);
  if (info == nullptr) return {};
  if (info->shape != shape) {
    fail("", fmt::format("{} has shape {}, needs {}", tensor, store::shape_text(info->shape),
                         store::shape_text(shape)));
    return {};
  }
  auto read = file_.read(*info);
  if (!read.ok()) {
    fail("", read.error().message);
    return {};
  }
  dtype = info->dtype;
  return std::move(read).value();
}

std::vector<float> GoldenCase::host_floats(std::string_view tensor, const Shape& shape) {
  store::Dtype dtype{};
  const std::vector<std::byte> raw = bytes(tensor, shape, dtype);
  if (!ok()) return {};
  if (dtype == store::Dtype::kF32) {
    std::vector<float> values(raw.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), raw.data(), raw.size());
    return values;
  }
  if (dtype != store::Dtype::kBf16 && dtype != store::Dtype::kF16) {
    fail("", fmt::format("{} has type {}, needs floats", tensor, store::dtype_name(dtype)));
    return {};
  }
  std::vector<float> values(raw.size() / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, raw.data() + 2 * i, 2);
    values[i] = dtype == store::Dtype::kBf16 ? to_float(BFloat16{bits}) : to_float(Half{bits});
  }
  return values;
}

std::byte* GoldenCase::device_bytes(std::size_t bytes) {
  if (failed_) return nullptr;
  auto buffer = backend_.allocate(bytes);
  if (!buffer.ok()) {
    fail("", buffer.error().message);
    return nullptr;
  }
  buffers_.push_back(std::move(buffer).value());
  return buffers_.back()->address();
}

int GoldenCase::group_of(std::int64_t in) {
  const std::int64_t groups = extent("in_scales", 1);
  if (!ok()) return 32;
  require(in % groups == 0 && in / groups % 32 == 0, "in_scales: the group is not a multiple of 32");
  return static_cast<int>(in / groups);
}

Matrix GoldenCase::q4_matrix(std::string_view codes, std::int64_t out, std::int64_t in) {
  const int group = group_of(in);
  Matrix w{Format::kQ4, out, in, group, {}, {}, {}};
  w.data = input<std::byte>(codes, {out, in / 8});
  w.scales = input<std::uint16_t>("in_scales", {out, in / group});
  w.biases = input<std::uint16_t>("in_biases", {out, in / group});
  return w;
}

void GoldenCase::add_close(std::string_view operation, std::string_view note, double error,
                           double tolerance) {
  results_.push_back(
      {name_, std::string(operation), error, tolerance, false, error <= tolerance, std::string(note)});
}

void GoldenCase::add_exact(std::string_view operation, std::string_view note, std::int64_t different) {
  results_.push_back({name_, std::string(operation), static_cast<double>(different), 0, true, different == 0,
                      std::string(note)});
}

void GoldenCase::expect_close(std::string_view operation, std::string_view tensor,
                              std::span<const float> values, double tolerance) {
  const auto* info = tensor_info(tensor);
  if (info == nullptr) return;
  const auto golden = host<float>(tensor, info->shape);
  if (!ok()) return;
  add_close(operation, tensor, relative_error(values, golden), tolerance);
}

void GoldenCase::expect_close(std::string_view operation, std::string_view tensor, Dev<float> values,
                              double tolerance) {
  const auto* info = tensor_info(tensor);
  if (info == nullptr) return;
  expect_close(operation, tensor, download(values, static_cast<std::size_t>(info->elements())), tolerance);
}

}  // namespace sluice::backend::golden
