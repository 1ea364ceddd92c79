// The JSON inside a safetensors header, read as events: a header of a hundred thousand tensors never becomes
// a tree, and a name that occurs twice is seen.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::store {

/// One entry as it stands in the header, nothing checked but the JSON types.
struct RawTensor {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // data_offsets
};

/// Fills `tensors` in file order and `metadata`. Errors (kCorrupt) name `what` and the tensor.
Result<void> parse_header_json(std::string_view text, std::string_view what, std::vector<RawTensor>& tensors,
                               std::map<std::string, std::string>& metadata);

/// Reads the object of strings under `key` at the top level of a JSON text (a shard index's `weight_map`),
/// in file order; everything else is skipped. `found` says whether the key is there.
Result<std::vector<std::pair<std::string, std::string>>> parse_string_map(std::string_view text,
                                                                          std::string_view key,
                                                                          std::string_view what, bool& found);

}  // namespace sluice::store
