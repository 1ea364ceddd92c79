// Statistics of what the experts are given on a text, for packing that weights errors by them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/model.h"

namespace sluice::engine {

/// Observes a model while it exists and adds up, in double and in the order of the text, what
/// pack/importance.h describes. The sums do not depend on how the text is cut into steps.
class ImportanceCollector {
 public:
  /// Fails without memory for the sums.
  static Result<std::unique_ptr<ImportanceCollector>> create(model::Model& model);
  ~ImportanceCollector();
  ImportanceCollector(const ImportanceCollector&) = delete;
  ImportanceCollector& operator=(const ImportanceCollector&) = delete;

  /// Runs ids through the model in windows, each from a fresh state; the last may be shorter.
  Result<void> run(std::span<const std::int32_t> ids,
                   const std::function<void(std::int64_t done, std::int64_t total)>& progress = {});

  /// Rows seen by the first layer: tokens.
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  /// Experts of the trunk and the head that no row was routed to.
  [[nodiscard]] std::int64_t unreached() const;
  /// Replaces the file as a whole.
  Result<void> write(const std::filesystem::path& path) const;

  static constexpr std::int64_t kWindow = 512;

 private:
  struct Layer {
    std::vector<double> count;       // [experts]
    std::vector<double> hidden;      // [experts][hidden]: sums of squares of the inputs of gate and up
    std::vector<double> inter;       // [experts][inter]: the same of down
    std::vector<double> inter_mean;  // [experts][inter]: sums of the inputs of down
    std::vector<double> moment;      // lower triangle of the sum of x x^T over rows, row by row
    double rows = 0;
  };
  explicit ImportanceCollector(model::Model& model) : model_(model) {}
  Result<void> observe(const model::ExpertStep& step);
  Result<void> add_expert(const model::ExpertStep& step, std::size_t entry, std::span<const float> x,
                          Layer& layer);
  void add_moment(std::span<const float> x, Layer& layer) const;

  model::Model& model_;
  std::vector<Layer> layers_;
  std::unique_ptr<backend::Buffer> rows_, gate_, up_, index_;
  std::vector<float> x_, h_;
  std::int64_t tokens_ = 0;
};

}  // namespace sluice::engine
