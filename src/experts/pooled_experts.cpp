#include "experts/pooled_experts.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/units.h"

namespace sluice::experts {
namespace {

/// A prefill goes through records once; what decoding comes back to is worth more.
constexpr double kDecodeWeight = 1;
constexpr double kPrefillWeight = 1.0 / 16;

class PoolLease final : public Lease {
 public:
  PoolLease(Pool& pool, backend::Format format, double& waited)
      : pool_(pool), format_(format), waited_(waited) {}
  ~PoolLease() override {
    for (const std::size_t slot : slots_) pool_.release(slot);
  }

  Result<void> take(std::int64_t first_record, std::span<const std::uint32_t> ids, double weight) {
    for (const std::uint32_t id : ids) {
      SLUICE_ASSIGN(const std::size_t slot, pool_.lease(first_record + id, weight));
      slots_.push_back(slot);
    }
    // What is there comes first.
    std::vector<std::uint32_t> late;
    for (std::uint32_t i = 0; i < slots_.size(); ++i) {
      (pool_.is_ready(slots_[i]) ? order_ : late).push_back(i);
    }
    resident_ = order_.size();
    order_.insert(order_.end(), late.begin(), late.end());
    for (const std::uint32_t i : order_) {
      entries_.push_back(backend::ExpertEntry::make(pool_.address(slots_[i]), format_));
    }
    return {};
  }

  [[nodiscard]] std::span<const backend::ExpertEntry> entries() const override { return entries_; }
  [[nodiscard]] std::span<const std::uint32_t> order() const override { return order_; }
  [[nodiscard]] std::size_t resident() const override { return resident_; }
  Result<void> wait_late() override {
    const auto start = std::chrono::steady_clock::now();
    // Every read is waited for, whatever the first error: afterwards none is under way.
    std::optional<Error> error;
    for (std::size_t i = resident_; i < order_.size(); ++i) {
      if (auto read = pool_.wait(slots_[order_[i]]); !read.ok() && !error) error = read.error();
    }
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (error) return *error;
    return {};
  }

 private:
  Pool& pool_;
  backend::Format format_;
  double& waited_;
  std::vector<std::size_t> slots_;  // of the ids
  std::vector<backend::ExpertEntry> entries_;
  std::vector<std::uint32_t> order_;
  std::size_t resident_ = 0;
};

}  // namespace

Result<std::unique_ptr<PooledExperts>> PooledExperts::create(const Options& options, ReadSlot read) {
  auto experts = std::make_unique<PooledExperts>();
  experts->options_ = options;
  Pool::Options pool;
  pool.slot_bytes = options.slot_bytes;
  pool.records = options.layers * options.experts;
  pool.slots = static_cast<std::size_t>(
      std::min(options.pool_bytes / options.slot_bytes, static_cast<std::uint64_t>(pool.records)));
  pool.reader_threads = options.reader_threads;
  pool.retries = options.retries;
  if (pool.slots < 2) {
    return make_error(ErrorCode::kInvalidArgument, "expert pool of {}: needed at least {}, two records",
                      format_size(options.pool_bytes), format_size(2 * options.slot_bytes));
  }
  SLUICE_ASSIGN(experts->pool_, Pool::create(pool, std::move(read)));
  return experts;
}

Result<std::unique_ptr<Lease>> PooledExperts::acquire(std::int64_t layer, std::span<const std::uint32_t> ids,
                                                      Use use) {
  auto lease = std::make_unique<PoolLease>(*pool_, options_.layout.format, waited_);
  SLUICE_TRY(
      lease->take(layer * options_.experts, ids, use == Use::kDecode ? kDecodeWeight : kPrefillWeight));
  return std::unique_ptr<Lease>(std::move(lease));
}

ExpertCounts PooledExperts::counts() const {
  const PoolCounts& pool = pool_->counts();
  const ReaderCounts reader = pool_->reader_counts();
  return {pool.hits, pool.late, pool.misses, pool.bytes_read, reader.retries, waited_};
}

}  // namespace sluice::experts
