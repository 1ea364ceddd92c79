#include "engine/collect_importance.h"

#include <algorithm>
#include <new>

#include "store/safetensors.h"

namespace sluice::engine {
namespace {

using model::Dev;

template <class T>
Dev<std::byte> bytes_at(Dev<T> address) {
  return Dev(reinterpret_cast<std::byte*>(address.address()));
}

template <class T>
Dev<const std::byte> bytes_at(Dev<const T> address) {
  return Dev(reinterpret_cast<const std::byte*>(address.address()));
}

}  // namespace

Result<std::unique_ptr<ImportanceCollector>> ImportanceCollector::create(model::Model& model) {
  std::unique_ptr<ImportanceCollector> collector(new ImportanceCollector(model));
  const auto& config = model.config();
  const auto experts = static_cast<std::size_t>(config.experts);
  const auto hidden = static_cast<std::size_t>(config.hidden);
  const auto inter = static_cast<std::size_t>(config.expert_inter);
  try {
    collector->layers_.resize(static_cast<std::size_t>(config.layer_count() + (model.has_mtp() ? 1 : 0)));
    for (Layer& layer : collector->layers_) {
      layer.count.resize(experts);
      layer.hidden.resize(experts * hidden);
      layer.inter.resize(experts * inter);
      layer.inter_mean.resize(experts * inter);
      layer.moment.resize(hidden * (hidden + 1) / 2);
    }
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kOutOfMemory, "statistics of {} experts: out of memory", config.experts);
  }
  const auto rows = static_cast<std::size_t>(model.max_rows());
  const auto take = [&](std::unique_ptr<backend::Buffer>& buffer, std::size_t width) -> Result<void> {
    SLUICE_ASSIGN(buffer, model.backend().allocate(rows * width * sizeof(float)));
    return {};
  };
  SLUICE_TRY(take(collector->rows_, hidden));
  SLUICE_TRY(take(collector->gate_, inter));
  SLUICE_TRY(take(collector->up_, inter));
  SLUICE_TRY(take(collector->index_, 1));
  model.set_expert_observer(
      [c = collector.get()](const model::ExpertStep& step) { return c->observe(step); });
  return collector;
}

ImportanceCollector::~ImportanceCollector() {
  model_.set_expert_observer({});
}

Result<void> ImportanceCollector::run(
    std::span<const std::int32_t> ids,
    const std::function<void(std::int64_t done, std::int64_t total)>& progress) {
  const std::size_t window = static_cast<std::size_t>(std::min(kWindow, model_.config().max_positions));
  const auto most = static_cast<std::size_t>(model_.max_rows());
  for (std::size_t first = 0; first < ids.size(); first += window) {
    const auto part = ids.subspan(first, std::min(window, ids.size() - first));
    SLUICE_ASSIGN(const auto state, model_.new_state(static_cast<std::int64_t>(part.size())));
    for (std::size_t at = 0; at < part.size(); at += most) {
      const auto rows = std::min(most, part.size() - at);
      const model::Segment segment{state.get(), part.subspan(at, rows)};
      model::ForwardOptions options;
      options.logits = model::ForwardOptions::Logits::kNone;
      SLUICE_TRY(model_.forward(std::span(&segment, 1), options));
      SLUICE_TRY(state->commit(static_cast<std::int64_t>(rows)));
    }
    tokens_ += static_cast<std::int64_t>(part.size());
    if (progress)
      progress(static_cast<std::int64_t>(first + part.size()), static_cast<std::int64_t>(ids.size()));
  }
  return {};
}

Result<void> ImportanceCollector::observe(const model::ExpertStep& step) {
  Layer& layer = layers_[static_cast<std::size_t>(step.record_layer)];
  x_.resize(static_cast<std::size_t>(step.rows * step.geometry.hidden));
  model_.backend().download(std::as_writable_bytes(std::span(x_)), bytes_at(step.x));
  for (std::size_t entry = 0; entry < step.entries.size(); ++entry) {
    SLUICE_TRY(add_expert(step, entry, x_, layer));
  }
  if (!step.first) return {};
  layer.rows += static_cast<double>(step.rows);
  add_moment(x_, layer);
  return {};
}

// What down is given is computed here once more, by the same operations for any format of the record.
Result<void> ImportanceCollector::add_expert(const model::ExpertStep& step, std::size_t entry,
                                             std::span<const float> x, Layer& layer) {
  backend::Backend& backend = model_.backend();
  const auto pairs = step.pair_row.subspan(step.begin[entry], step.begin[entry + 1] - step.begin[entry]);
  const auto rows = static_cast<std::int64_t>(pairs.size());
  const auto hidden = static_cast<std::size_t>(step.geometry.hidden);
  const auto inter = static_cast<std::size_t>(step.geometry.inter);
  const spec::RecordLayout layout{step.geometry, step.entries[entry].format()};
  const auto parts = backend::record_parts(layout, step.entries[entry].record());
  const auto index = index_->as<std::uint32_t>();
  backend.upload(bytes_at(index), std::as_bytes(pairs));
  backend.gather_rows(step.x, index, rows, step.geometry.hidden, rows_->as<float>());
  backend.linear(parts.gate, rows_->as<float>(), rows, gate_->as<float>());
  backend.linear(parts.up, rows_->as<float>(), rows, up_->as<float>());
  backend.silu_multiply(gate_->as<float>(), up_->as<float>(), rows * step.geometry.inter, gate_->as<float>());
  h_.resize(pairs.size() * inter);
  backend.download(std::as_writable_bytes(std::span(h_)), Dev<const std::byte>(gate_->as<std::byte>()));

  const std::size_t expert = step.ids[entry];
  layer.count[expert] += static_cast<double>(rows);
  double* squares = layer.hidden.data() + expert * hidden;
  double* inner = layer.inter.data() + expert * inter;
  double* mean = layer.inter_mean.data() + expert * inter;
  for (std::size_t p = 0; p < pairs.size(); ++p) {
    const float* from = x.data() + pairs[p] * hidden;
    for (std::size_t i = 0; i < hidden; ++i) squares[i] += double{from[i]} * double{from[i]};
    const float* h = h_.data() + p * inter;
    for (std::size_t i = 0; i < inter; ++i) {
      inner[i] += double{h[i]} * double{h[i]};
      mean[i] += double{h[i]};
    }
  }
  return {};
}

void ImportanceCollector::add_moment(std::span<const float> x, Layer& layer) const {
  const auto hidden = static_cast<std::size_t>(model_.config().hidden);
  double* row = layer.moment.data();
  for (std::size_t i = 0; i < hidden; row += ++i) {
    for (std::size_t at = 0; at < x.size(); at += hidden) {
      const float* from = x.data() + at;
      const double xi = double{from[i]};
      for (std::size_t j = 0; j <= i; ++j) row[j] += xi * double{from[j]};
    }
  }
}

std::int64_t ImportanceCollector::unreached() const {
  std::int64_t none = 0;
  for (const Layer& layer : layers_) none += std::count(layer.count.begin(), layer.count.end(), 0.0);
  return none;
}

Result<void> ImportanceCollector::write(const std::filesystem::path& path) const {
  const auto& config = model_.config();
  std::vector<std::vector<float>> values;
  std::vector<store::TensorData> tensors;
  values.reserve(layers_.size() * 6);
  for (std::size_t n = 0; n < layers_.size(); ++n) {
    const Layer& layer = layers_[n];
    const auto add = [&](std::string_view name, std::vector<std::int64_t> shape,
                         std::span<const double> sums) {
      auto& narrow = values.emplace_back(sums.begin(), sums.end());
      tensors.push_back({fmt::format("experts.{}.{}", n, name), store::Dtype::kF32, std::move(shape),
                         std::as_bytes(std::span(narrow))});
    };
    add("count", {config.experts}, layer.count);
    add("hidden", {config.experts, config.hidden}, layer.hidden);
    add("inter", {config.experts, config.expert_inter}, layer.inter);
    add("inter_mean", {config.experts, config.expert_inter}, layer.inter_mean);
    add("rows", {1}, std::span(&layer.rows, 1));
    add("moment", {static_cast<std::int64_t>(layer.moment.size())}, layer.moment);
  }
  return store::write_safetensors(path, tensors, {{"format", "sluice importance"}});
}

}  // namespace sluice::engine
