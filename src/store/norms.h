// Whether a checkpoint's norm weights are zero-centred or have the 1 folded in (model.md 2.4).
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "store/dense_table.h"
#include "store/tensor_index.h"

namespace sluice::store {

/// Decided once for the trunk and once for the MTP head, never tensor by tensor: trained raw norms can have
/// means above 1. Only the two pre_fc norms, which some converters treat apart, go by their own means.
struct NormConvention {
  bool trunk_folded = false;
  bool mtp_folded = false;
  bool pre_embedding_folded = false;
  bool pre_hidden_folded = false;

  [[nodiscard]] bool is_folded(std::string_view canonical) const;
};

/// Released names are raw. MLX forms are judged by the median of their norms' means; a median between 0.35
/// and 0.65 could be either and is refused (kUnsupported).
Result<NormConvention> decide_norms(const TensorIndex& index, std::span<const DenseInfo> dense);

}  // namespace sluice::store
