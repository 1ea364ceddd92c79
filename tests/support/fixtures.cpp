#include "support/fixtures.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/numbers.h"

namespace sluice::test {
namespace {

template <class T>
T load_at(const FixtureTensor& tensor, std::size_t i) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + i * sizeof value, sizeof value);
  return value;
}

}  // namespace

Fixture Fixture::load(const std::filesystem::path& path) {
  Fixture fixture;
  auto file = store::SafetensorsFile::open(path);
  if (!file) {
    ADD_FAILURE() << file.error().message;
    return fixture;
  }
  fixture.metadata_ = (*file)->header().metadata;
  for (const auto& [name, info] : (*file)->header().tensors) {
    auto bytes = (*file)->read(info);
    if (!bytes) {
      ADD_FAILURE() << bytes.error().message;
      continue;
    }
    fixture.tensors_[name] = {info.dtype, info.shape, std::move(*bytes)};
  }
  return fixture;
}

const FixtureTensor* Fixture::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  if (it != tensors_.end()) return &it->second;
  ADD_FAILURE() << "the fixture has no tensor " << name;
  return nullptr;
}

std::vector<std::int64_t> Fixture::shape(std::string_view name) const {
  const FixtureTensor* tensor = find(name);
  return tensor == nullptr ? std::vector<std::int64_t>{} : tensor->shape;
}

std::vector<float> Fixture::floats(std::string_view name) const {
  const FixtureTensor* tensor = find(name);
  if (tensor == nullptr) return {};
  std::vector<float> values(tensor->bytes.size() /
                            static_cast<std::size_t>(store::dtype_size(tensor->dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (tensor->dtype) {
      case store::Dtype::kF32:
        values[i] = load_at<float>(*tensor, i);
        break;
      case store::Dtype::kBf16:
        values[i] = to_float(load_at<BFloat16>(*tensor, i));
        break;
      case store::Dtype::kF16:
        values[i] = to_float(load_at<Half>(*tensor, i));
        break;
      case store::Dtype::kF8E4M3:
        values[i] = e4m3_to_float(load_at<std::uint8_t>(*tensor, i));
        break;
      default:
        ADD_FAILURE() << name << " is " << store::dtype_name(tensor->dtype) << ", not a float type";
        return {};
    }
  }
  return values;
}

std::vector<std::int64_t> Fixture::ints(std::string_view name) const {
  const FixtureTensor* tensor = find(name);
  if (tensor == nullptr) return {};
  std::vector<std::int64_t> values(tensor->bytes.size() /
                                   static_cast<std::size_t>(store::dtype_size(tensor->dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    switch (tensor->dtype) {
      case store::Dtype::kI32:
        values[i] = load_at<std::int32_t>(*tensor, i);
        break;
      case store::Dtype::kI64:
        values[i] = load_at<std::int64_t>(*tensor, i);
        break;
      case store::Dtype::kU32:
        values[i] = load_at<std::uint32_t>(*tensor, i);
        break;
      case store::Dtype::kI16:
        values[i] = load_at<std::int16_t>(*tensor, i);
        break;
      case store::Dtype::kU16:
        values[i] = load_at<std::uint16_t>(*tensor, i);
        break;
      case store::Dtype::kI8:
        values[i] = load_at<std::int8_t>(*tensor, i);
        break;
      case store::Dtype::kU8:
      case store::Dtype::kBool:
        values[i] = load_at<std::uint8_t>(*tensor, i);
        break;
      default:
        ADD_FAILURE() << name << " is " << store::dtype_name(tensor->dtype) << ", not an integer type";
        return {};
    }
  }
  return values;
}

std::vector<std::int32_t> Fixture::ids(std::string_view name) const {
  const std::vector<std::int64_t> wide = ints(name);
  std::vector<std::int32_t> values(wide.size());
  for (std::size_t i = 0; i < wide.size(); ++i) values[i] = static_cast<std::int32_t>(wide[i]);
  return values;
}

}  // namespace sluice::test
