// Changing single tensors of a checkpoint file in place, to make broken and odd ones.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "store/safetensors.h"
#include "support/fixtures.h"

namespace sluice::test {

using TensorMap = std::map<std::string, FixtureTensor, std::less<>>;

/// Writes `tensors` as a safetensors file.
inline void save_tensors(const std::filesystem::path& path, const TensorMap& tensors) {
  std::vector<store::TensorData> list;
  for (const auto& [name, tensor] : tensors) list.push_back({name, tensor.dtype, tensor.shape, tensor.bytes});
  const auto written = store::write_safetensors(path, list);
  EXPECT_TRUE(written.ok()) << (written.ok() ? "" : written.error().message);
}

/// Reads a file, lets `change` work on its tensors, and writes it back.
inline void edit_tensors(const std::filesystem::path& path, const std::function<void(TensorMap&)>& change) {
  TensorMap tensors = Fixture::load(path).tensors();
  change(tensors);
  save_tensors(path, tensors);
}

/// A tensor from values, e.g. make_tensor<float>(Dtype::kF32, {2}, {1, 2}).
template <class T>
FixtureTensor make_tensor(store::Dtype dtype, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  FixtureTensor tensor{dtype, std::move(shape), std::vector<std::byte>(values.size() * sizeof(T))};
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

}  // namespace sluice::test
