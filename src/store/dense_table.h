// Every dense tensor that a model of a given geometry needs: all but routed experts and n-gram rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "spec/config.h"

namespace sluice::store {

enum class DenseKind {
  kMatrix,  // [out, in], any stored precision
  kNorm,    // zero-centred in the released form: read as the effective multiplier
  kVector,  // read as it stands
  kConv,    // [channels, kernel]
};

struct DenseInfo {
  std::string name;  // canonical
  DenseKind kind = DenseKind::kMatrix;
  std::vector<std::int64_t> shape;
};

/// Values of a tensor.
std::int64_t elements(const DenseInfo& info);

/// The dense tensors of the trunk, layer by layer, then (with_mtp) of the MTP head. A model with tied
/// embeddings has no "lm_head".
std::vector<DenseInfo> dense_tensors(const spec::ModelConfig& config, bool with_mtp);

}  // namespace sluice::store
