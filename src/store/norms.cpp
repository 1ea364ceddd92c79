#include "store/norms.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "store/values.h"

namespace sluice::store {
namespace {

constexpr std::string_view kPreEmbedding = "mtp.pre_fc_norm_embedding";
constexpr std::string_view kPreHidden = "mtp.pre_fc_norm_hidden";
constexpr double kFoldedAbove = 0.5;
constexpr double kUnclear = 0.15;  // on both sides

Result<double> mean_of(const TensorRef& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.info->elements()));
  SLUICE_TRY(read_floats(tensor, 0, values));
  return std::accumulate(values.begin(), values.end(), 0.0) /
         static_cast<double>(std::max<std::size_t>(values.size(), 1));
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

Result<bool> decide(const TensorIndex& index, std::string_view part, std::vector<double> means) {
  if (means.empty()) return false;
  const double median = median_of(std::move(means));
  // Written so that a NaN is refused too.
  if (!(median < kFoldedAbove - kUnclear || median > kFoldedAbove + kUnclear)) {
    return make_error(
        ErrorCode::kUnsupported,
        "{}: norm weights of the {}: median of means {:.3f} found, near 0 (zero-centred) or near 1 "
        "(1 added) needed",
        index.folder().string(), part, median);
  }
  return median > kFoldedAbove;
}

}  // namespace

bool NormConvention::is_folded(std::string_view canonical) const {
  if (canonical == kPreEmbedding) return pre_embedding_folded;
  if (canonical == kPreHidden) return pre_hidden_folded;
  return canonical.starts_with("mtp.") ? mtp_folded : trunk_folded;
}

Result<NormConvention> decide_norms(const TensorIndex& index, std::span<const DenseInfo> dense) {
  NormConvention norms;
  if (!index.is_mlx()) return norms;
  std::vector<double> trunk, mtp;
  for (const DenseInfo& info : dense) {
    if (info.kind != DenseKind::kNorm) continue;
    SLUICE_ASSIGN(const TensorRef tensor, index.need(info.name, info.shape));
    SLUICE_ASSIGN(const double mean, mean_of(tensor));
    if (info.name == kPreEmbedding) {
      norms.pre_embedding_folded = mean > kFoldedAbove;
    } else if (info.name == kPreHidden) {
      norms.pre_hidden_folded = mean > kFoldedAbove;
    } else {
      (info.name.starts_with("mtp.") ? mtp : trunk).push_back(mean);
    }
  }
  SLUICE_ASSIGN(norms.trunk_folded, decide(index, "trunk", std::move(trunk)));
  SLUICE_ASSIGN(norms.mtp_folded, decide(index, "MTP head", std::move(mtp)));
  return norms;
}

}  // namespace sluice::store
