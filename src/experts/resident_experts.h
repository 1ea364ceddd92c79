// All expert records in the backend's memory: the provider of models that fit.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "experts/expert_provider.h"
#include "store/source.h"

namespace sluice::experts {

class ResidentExperts final : public ExpertProvider {
 public:
  /// Reads every record of the first `layers` record layers in precision number `tier` of the source.
  /// With `repeat` all records of a layer are copies of its first: for benchmarks of models too large to
  /// make.
  static Result<std::unique_ptr<ResidentExperts>> load(const store::WeightSource& source, std::size_t tier,
                                                       std::int64_t layers, backend::Backend& backend,
                                                       const Progress& progress, bool repeat = false);

  /// Bytes that load() would take for `layers` layers of `experts` records.
  static std::uint64_t cost(const spec::RecordLayout& layout, std::int64_t layers, std::int64_t experts);

  Result<std::unique_ptr<Visit>> visit(const Wanted& wanted) override;
  [[nodiscard]] backend::Dev<const backend::ExpertEntry> table(std::int64_t layer) override {
    return table_->as<const backend::ExpertEntry>(layer * experts_);
  }
  [[nodiscard]] std::uint64_t bytes() const override;
  [[nodiscard]] ExpertCounts counts() const override {
    ExpertCounts counts;
    counts.hits = hits_;
    return counts;
  }

 private:
  std::vector<std::unique_ptr<backend::Buffer>> layers_;  // [experts][stride]
  std::unique_ptr<backend::Buffer> table_;                // [layers][experts]
  std::int64_t stride_ = 0;
  std::int64_t experts_ = 0;
  std::uint64_t hits_ = 0;
  backend::Format format_ = backend::Format::kQ4;
};

}  // namespace sluice::experts
