#include "experts/resident_experts.h"

#include <algorithm>
#include <numeric>

#include "base/work_together.h"
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
                                                               std::int64_t layers,
                                                               const LoadOptions& options,
                                                               backend::Backend& backend) {
  const auto& layouts = source.record_layouts();
  if (options.tier >= layouts.size()) {
    return make_error(ErrorCode::kInvalidArgument, "experts in precision {} asked for, the model has {}",
                      options.tier, layouts.size());
  }
  const spec::RecordLayout layout = layouts[options.tier];
  auto experts = std::make_unique<ResidentExperts>();
  experts->format_ = layout.format;
  experts->stride_ = stride_of(layout);
  experts->experts_ = source.config().experts;
  SLUICE_TRY(experts->allocate(layers, backend));
  SLUICE_TRY(backend.in_host_memory() && !options.repeat ? experts->read(source, options)
                                                         : experts->upload(source, options, backend));
  return experts;
}

Result<void> ResidentExperts::allocate(std::int64_t layers, backend::Backend& backend) {
  std::vector<backend::ExpertEntry> table;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    SLUICE_ASSIGN(auto buffer, backend.allocate(static_cast<std::size_t>(experts_ * stride_)));
    for (std::int64_t expert = 0; expert < experts_; ++expert) {
      table.push_back(backend::ExpertEntry::make(buffer->as<std::byte>(expert * stride_).address(), format_));
    }
    layers_.push_back(std::move(buffer));
  }
  const auto bytes = std::as_bytes(std::span(table));
  SLUICE_ASSIGN(table_, backend.allocate(bytes.size()));
  backend.upload(table_->as<std::byte>(), bytes);
  return {};
}

Result<void> ResidentExperts::read(const store::WeightSource& source, const LoadOptions& options) {
  const auto bytes = static_cast<std::size_t>(source.record_layouts()[options.tier].bytes());
  const std::size_t count = layers_.size() * static_cast<std::size_t>(experts_);
  return run_tasks(
      count, static_cast<std::size_t>(options.threads), "reading experts",
      [&](std::size_t i) -> Result<void> {
        const auto layer = static_cast<std::int64_t>(i) / experts_;
        const auto expert = static_cast<std::int64_t>(i) % experts_;
        return source.read_record(options.tier, layer, expert, {place(layer, expert).address(), bytes});
      },
      [&](std::size_t done) {
        if (options.progress) options.progress(done * bytes, count * bytes);
      });
}

Result<void> ResidentExperts::upload(const store::WeightSource& source, const LoadOptions& options,
                                     backend::Backend& backend) {
  const auto bytes = static_cast<std::size_t>(source.record_layouts()[options.tier].bytes());
  // As many records at a time as there are threads to read them.
  const std::int64_t distinct = options.repeat ? 1 : experts_;
  const std::int64_t batch = std::min<std::int64_t>(options.threads, distinct);
  SLUICE_ASSIGN(auto staging, AlignedBuffer::create(static_cast<std::size_t>(batch) * bytes));
  const auto staged = [&](std::int64_t i) {
    return staging.bytes().subspan(static_cast<std::size_t>(i) * bytes, bytes);
  };
  const std::uint64_t total = layers_.size() * static_cast<std::uint64_t>(distinct) * bytes;
  std::uint64_t done = 0;
  for (std::int64_t layer = 0; layer < static_cast<std::int64_t>(layers_.size()); ++layer) {
    for (std::int64_t first = 0; first < distinct; first += batch) {
      const std::int64_t count = std::min(batch, distinct - first);
      SLUICE_TRY(run_tasks(static_cast<std::size_t>(count), static_cast<std::size_t>(options.threads),
                           "reading experts", [&](std::size_t i) {
                             const auto n = static_cast<std::int64_t>(i);
                             return source.read_record(options.tier, layer, first + n, staged(n));
                           }));
      for (std::int64_t i = 0; i < count; ++i) {
        backend.upload(place(layer, first + i), staged(i));
        done += bytes;
        if (options.progress) options.progress(done, total);
      }
    }
    for (std::int64_t expert = distinct; expert < experts_; ++expert) {
      backend.copy(place(layer, expert), place(layer, 0), bytes);
    }
  }
  return {};
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
