#include "experts/resident_experts.h"

#include <numeric>

#include "experts/statistics.h"

namespace sluice::experts {
namespace {

class ResidentVisit final : public Visit {
 public:
  explicit ResidentVisit(std::vector<backend::ExpertEntry> entries)
      : entries_(std::move(entries)), places_(entries_.size()) {
    std::iota(places_.begin(), places_.end(), 0U);
  }
  Result<std::span<const std::uint32_t>> next(bool) override {
    // All at once, then nothing.
    if (given_) places_.clear();
    given_ = true;
    return std::span<const std::uint32_t>(places_);
  }
  [[nodiscard]] std::span<const backend::ExpertEntry> entries() const override { return entries_; }
  [[nodiscard]] bool asynchronous() const override { return true; }  // nothing goes

 private:
  std::vector<backend::ExpertEntry> entries_;
  std::vector<std::uint32_t> places_;
  bool given_ = false;
};

/// Bytes from one record to the next.
std::int64_t stride_of(const spec::RecordLayout& layout) {
  constexpr std::int64_t kAlignment = 64;
  return (layout.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Result<std::unique_ptr<ResidentExperts>> ResidentExperts::load(const store::WeightSource& source,
                                                               std::size_t tier, std::int64_t layers,
                                                               backend::Backend& backend,
                                                               const Progress& progress, bool repeat) {
  const auto& layouts = source.record_layouts();
  if (tier >= layouts.size()) {
    return make_error(ErrorCode::kInvalidArgument, "experts in precision {} asked for, the model has {}",
                      tier, layouts.size());
  }
  const spec::RecordLayout layout = layouts[tier];
  auto experts = std::make_unique<ResidentExperts>();
  experts->format_ = layout.format;
  experts->stride_ = stride_of(layout);
  const std::int64_t count = source.config().experts;
  const auto total = static_cast<std::uint64_t>(layers * count * layout.bytes());
  std::uint64_t done = 0;
  SLUICE_ASSIGN(auto staging, AlignedBuffer::create(static_cast<std::size_t>(layout.bytes())));
  experts->experts_ = count;
  std::vector<backend::ExpertEntry> table;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    SLUICE_ASSIGN(auto buffer, backend.allocate(static_cast<std::size_t>(count * experts->stride_)));
    for (std::int64_t expert = 0; expert < count; ++expert) {
      table.push_back(backend::ExpertEntry::make(buffer->as<std::byte>(expert * experts->stride_).address(),
                                                 layout.format));
      if (repeat && expert > 0) {
        backend.copy(buffer->as<std::byte>(expert * experts->stride_), buffer->as<std::byte>(),
                     staging.size());
        continue;
      }
      SLUICE_TRY(source.read_record(tier, layer, expert, staging.bytes()));
      backend.upload(buffer->as<std::byte>(expert * experts->stride_), staging.bytes());
      done += staging.size();
      if (progress) progress(done, total);
    }
    experts->layers_.push_back(std::move(buffer));
  }
  const auto bytes = std::as_bytes(std::span(table));
  SLUICE_ASSIGN(experts->table_, backend.allocate(bytes.size()));
  backend.upload(experts->table_->as<std::byte>(), bytes);
  return experts;
}

std::uint64_t ResidentExperts::cost(const spec::RecordLayout& layout, std::int64_t layers,
                                    std::int64_t experts) {
  return static_cast<std::uint64_t>(layers * experts) *
         (static_cast<std::uint64_t>(stride_of(layout)) + sizeof(backend::ExpertEntry));
}

Result<std::unique_ptr<Visit>> ResidentExperts::visit(const Wanted& wanted) {
  std::vector<backend::ExpertEntry> entries;
  entries.reserve(wanted.ids.size());
  hits_ += wanted.ids.size();
  auto& buffer = *layers_[static_cast<std::size_t>(wanted.layer)];
  for (const std::uint32_t id : wanted.ids) {
    if (statistics_ != nullptr) statistics_->hit(wanted.layer, id);
    entries.push_back(backend::ExpertEntry::make(buffer.as<std::byte>(id * stride_).address(), format_));
  }
  return std::unique_ptr<Visit>(std::make_unique<ResidentVisit>(std::move(entries)));
}

std::uint64_t ResidentExperts::bytes() const {
  std::uint64_t bytes = table_->size();
  for (const auto& layer : layers_) bytes += layer->size();
  return bytes;
}

}  // namespace sluice::experts
