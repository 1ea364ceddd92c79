#include "engine/record_routes.h"

#include "store/store_format.h"

namespace sluice::engine {

Result<std::unique_ptr<RouteRecorder>> RouteRecorder::create(model::Model& model, std::size_t tier,
                                                             const std::filesystem::path& path) {
  std::unique_ptr<RouteRecorder> recorder(new RouteRecorder(model));
  const auto& config = model.config();
  const experts::RouteShape shape{
      config.record_layers(), config.experts, config.experts_per_token,
      static_cast<std::uint64_t>(store::slot_bytes(model.source().record_layouts()[tier]))};
  SLUICE_ASSIGN(recorder->writer_, experts::RouteWriter::create(path, shape));
  model.set_expert_observer([r = recorder.get()](const model::ExpertStep& step) { return r->observe(step); });
  return recorder;
}

RouteRecorder::~RouteRecorder() {
  model_.set_expert_observer({});
}

Result<void> RouteRecorder::observe(const model::ExpertStep& step) {
  rows_.clear();
  for (std::size_t i = 0; i < step.ids.size(); ++i) rows_.push_back(step.begin[i + 1] - step.begin[i]);
  const experts::Use use = model::Model::use_of(step.rows);
  return writer_->layer(step.record_layer, step.rows, use, step.first, step.ids, rows_);
}

}  // namespace sluice::engine
