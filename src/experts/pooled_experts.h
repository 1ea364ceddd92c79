// Expert records that flow through a bounded pool: the provider of models that do not fit.
#pragma once

#include <memory>

#include "experts/expert_provider.h"
#include "experts/pool.h"
#include "spec/formats.h"

namespace sluice::experts {

class PooledExperts final : public ExpertProvider {
 public:
  struct Options {
    spec::RecordLayout layout;
    std::size_t slot_bytes = 0;
    std::int64_t layers = 0;
    std::int64_t experts = 0;  // a layer
    std::uint64_t pool_bytes = 0;
    int reader_threads = 8;
    int retries = 2;
  };
  /// A pool of as many slots as `pool_bytes` holds, at most one a record. Error: room for fewer than two.
  static Result<std::unique_ptr<PooledExperts>> create(const Options& options, ReadSlot read);

  Result<std::unique_ptr<Lease>> acquire(std::int64_t layer, std::span<const std::uint32_t> ids,
                                         Use use) override;
  /// Half of the slots, so that the next lease's reads go on while this one's records are computed with.
  [[nodiscard]] std::size_t most_at_once() const override { return pool_->slots() / 2; }
  void end_step() override { pool_->tick(); }
  [[nodiscard]] std::uint64_t bytes() const override { return pool_->bytes(); }
  [[nodiscard]] ExpertCounts counts() const override;
  [[nodiscard]] const Pool& pool() const { return *pool_; }

 private:
  Options options_;
  double waited_ = 0;  // seconds
  std::unique_ptr<Pool> pool_;
};

}  // namespace sluice::experts
