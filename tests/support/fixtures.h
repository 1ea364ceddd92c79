// Fixture files read whole: name to values, whatever the dtype.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "store/safetensors.h"

namespace sluice::test {

struct FixtureTensor {
  store::Dtype dtype = store::Dtype::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

/// All tensors and metadata of a safetensors file. A name that is missing, or of another dtype than asked
/// for, fails the test and gives an empty vector.
class Fixture {
 public:
  /// Reads the file; on an error the test fails and the fixture is empty.
  static Fixture load(const std::filesystem::path& path);

  [[nodiscard]] bool has(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }
  /// F32, BF16, F16 or F8_E4M3 values as float32.
  [[nodiscard]] std::vector<float> floats(std::string_view name) const;
  /// I32, I64, U32, U8, I8, U16, I16 or BOOL values.
  [[nodiscard]] std::vector<std::int64_t> ints(std::string_view name) const;
  /// Token ids: ints as 32 bits.
  [[nodiscard]] std::vector<std::int32_t> ids(std::string_view name) const;
  [[nodiscard]] std::vector<std::int64_t> shape(std::string_view name) const;
  [[nodiscard]] const FixtureTensor* find(std::string_view name) const;
  [[nodiscard]] const std::map<std::string, FixtureTensor, std::less<>>& tensors() const { return tensors_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::map<std::string, FixtureTensor, std::less<>> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace sluice::test
