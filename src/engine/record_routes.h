// Recording which experts a model chooses.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "experts/route_trace.h"
#include "model/model.h"

namespace sluice::engine {

/// Writes the routes of a model's steps to a file while it exists. The model has one observer at a time.
class RouteRecorder {
 public:
  /// `tier`: which of the source's precisions the model was loaded with; it decides the size of a record.
  static Result<std::unique_ptr<RouteRecorder>> create(model::Model& model, std::size_t tier,
                                                       const std::filesystem::path& path);
  ~RouteRecorder();
  RouteRecorder(const RouteRecorder&) = delete;
  RouteRecorder& operator=(const RouteRecorder&) = delete;

  /// Ends the recording; only then is the file there.
  Result<void> finish() { return writer_->finish(); }

 private:
  explicit RouteRecorder(model::Model& model) : model_(model) {}
  Result<void> observe(const model::ExpertStep& step);

  model::Model& model_;
  std::unique_ptr<experts::RouteWriter> writer_;
  std::vector<std::uint32_t> rows_;
};

}  // namespace sluice::engine
