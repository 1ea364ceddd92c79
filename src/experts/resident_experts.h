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
  struct LoadOptions {
    std::size_t tier = 0;  // precision number of the source
    int threads = 1;       // that read
    /// Benchmarks of models too large to make: all records of a layer are copies of its first.
    bool repeat = false;
    Progress progress;
  };

  /// Reads every record of the first `layers` record layers.
  static Result<std::unique_ptr<ResidentExperts>> load(const store::WeightSource& source, std::int64_t layers,
                                                       const LoadOptions& options, backend::Backend& backend);

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
  Result<void> allocate(std::int64_t layers, backend::Backend& backend);
  /// To where the records stay.
  Result<void> read(const store::WeightSource& source, const LoadOptions& options);
  /// By way of the host's memory.
  Result<void> upload(const store::WeightSource& source, const LoadOptions& options,
                      backend::Backend& backend);
  [[nodiscard]] backend::Dev<std::byte> place(std::int64_t layer, std::int64_t expert) const {
    return layers_[static_cast<std::size_t>(layer)]->as<std::byte>(expert * stride_);
  }

  std::vector<std::unique_ptr<backend::Buffer>> layers_;  // [experts][stride]
  std::unique_ptr<backend::Buffer> table_;                // [layers][experts]
  std::int64_t stride_ = 0;
  std::int64_t experts_ = 0;
  std::uint64_t hits_ = 0;
  backend::Format format_ = backend::Format::kQ4;
};

}  // namespace sluice::experts
