// Expert records that flow through a bounded pool: the provider of models that do not fit.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "experts/expert_provider.h"
#include "experts/lookahead.h"
#include "experts/pool.h"
#include "spec/formats.h"

namespace sluice::experts {

/// One precision of the records.
struct PooledTier {
  spec::RecordLayout layout;
  std::size_t slot_bytes = 0;  // a record's, padding included
};

class PooledExperts final : public ExpertProvider {
 public:
  struct Options {
    /// The precision of what is kept and read ahead; then, where there is a second, that of what a decode
    /// step wants and nobody predicted. Record numbers of the second follow those of the first.
    std::vector<PooledTier> tiers;
    std::int64_t layers = 0;
    std::int64_t experts = 0;  // a layer
    std::uint64_t pool_bytes = 0;
    /// Decode leaves out records that are not there and that no row gives this weight; 0: none.
    float cut_weak = 0;
    bool lookahead = true;
    bool ring = true;  // io_uring where possible
    /// Where the pool lies, for devices that read records in place; empty: in ordinary memory.
    AllocateSlots allocate;
    RecordReader::Options reader;
    /// What was hot is kept here from one run to the next; empty: nowhere.
    std::filesystem::path heat_file;
    /// Bytes that must be given back to the system; asked for at the end of steps. Empty: none ever.
    std::function<std::uint64_t()> pressure;
    /// The pool is never shrunk below.
    std::size_t least_slots = 2;
    /// Told what a user should know: a slower way of reading, a smaller pool.
    std::function<void(const std::string&)> on_notice;
  };
  /// A pool of as many slots as `pool_bytes` holds, at most one a record. Error: room for fewer than two.
  static Result<std::unique_ptr<PooledExperts>> create(const Options& options, SlotSource source);
  /// Keeps the heat.
  ~PooledExperts() override;

  Result<std::unique_ptr<Visit>> visit(const Wanted& wanted) override;
  bool wants_prediction(std::int64_t layer, Use use) override;
  void predict(std::int64_t layer, std::span<const std::uint32_t> ids, Use use) override;
  void touched(std::int64_t layer, std::span<const std::uint32_t> ids, Use use) override;
  void end_step() override;
  void settle() override;
  [[nodiscard]] std::uint64_t bytes() const override { return pool_->bytes(); }
  [[nodiscard]] ExpertCounts counts() const override;
  [[nodiscard]] std::string_view reader() const override { return pool_->reader().name(); }
  [[nodiscard]] const Pool& pool() const { return *pool_; }
  /// Gives memory back until the pool has at most `bytes`, or its least.
  void shrink(std::uint64_t bytes);

 private:
  class PoolVisit;
  PooledExperts() = default;
  [[nodiscard]] std::int64_t key(std::int64_t layer, std::uint32_t expert, std::size_t tier = 0) const {
    return (static_cast<std::int64_t>(tier) * options_.layers + layer) * options_.experts + expert;
  }
  void notice(const std::string& text) const {
    if (options_.on_notice) options_.on_notice(text);
  }
  void warm_up();
  void warm_up_hottest(std::int64_t records);
  void watch_memory();

  Options options_;
  std::unique_ptr<Pool> pool_;
  Lookahead lookahead_{0};
  double waited_ = 0;  // seconds
  std::uint64_t low_tier_ = 0, dropped_ = 0;
  std::uint64_t steps_ = 0;
};

}  // namespace sluice::experts
