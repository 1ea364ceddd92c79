// Which experts the steps of a run chose: written while it runs, read to try out what to keep in memory.
//
// Text, a line each: first the header, then for every step a line of its use and rows, and one line for each
// record layer that it went through: the layer, then the ids of the union in ascending order, each with the
// number of rows that chose it where that is more than one.
//
//   sluice-routes 1 layers 9 experts 32 top 4 record_bytes 12288
//   prefill 19
//   0 1*3 4 7*19 ...
//   decode 1
//   0 4 7 12 30
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/output_file.h"
#include "experts/expert_provider.h"

namespace sluice::experts {

struct RouteShape {
  std::int64_t layers = 0;   // record layers
  std::int64_t experts = 0;  // of a layer
  std::int64_t top = 0;      // experts that a row chooses
  std::uint64_t record_bytes = 0;

  friend bool operator==(const RouteShape&, const RouteShape&) = default;
};

/// The routes of a run in memory.
struct RouteTrace {
  struct Step {
    Use use = Use::kDecode;
    std::uint32_t rows = 0;
    std::uint32_t first_layer = 0;  // into layers; it ends where the next step begins
  };
  struct Layer {
    std::uint32_t layer = 0;
    std::uint32_t first_id = 0;  // into ids and rows; it ends where the next layer begins
  };
  RouteShape shape;
  std::vector<Step> steps;
  std::vector<Layer> layers;
  std::vector<std::uint32_t> ids;   // ascending within a layer of a step
  std::vector<std::uint32_t> rows;  // that chose the id

  void begin_step(Use use, std::uint32_t step_rows) {
    steps.push_back({use, step_rows, static_cast<std::uint32_t>(layers.size())});
  }
  void begin_layer(std::uint32_t layer) { layers.push_back({layer, static_cast<std::uint32_t>(ids.size())}); }
  [[nodiscard]] std::span<const Layer> layers_of(std::size_t step) const;
  /// Of entry `i` of layers.
  [[nodiscard]] std::span<const std::uint32_t> ids_of(std::size_t i) const;
  /// Rows of the decode steps, and of the others.
  [[nodiscard]] std::uint64_t tokens(Use use) const;
  /// Appends the steps of a trace of the same shape; false where it is not, or both are too many.
  bool append(const RouteTrace& other);

  static constexpr std::size_t kMostIds = std::size_t{1} << 25;
};

/// Reads a trace; every number is checked. `name` is for messages.
Result<RouteTrace> parse_route_trace(std::string_view text, std::string_view name);
Result<RouteTrace> read_route_trace(const std::filesystem::path& path);

/// Writes a trace while the run goes on; memory is bounded by one layer of a step. The file appears when it
/// is finished.
class RouteWriter {
 public:
  static Result<std::unique_ptr<RouteWriter>> create(const std::filesystem::path& path,
                                                     const RouteShape& shape);

  /// Routes of one layer: `ids` in any order, with the rows that chose each. A layer may come in several
  /// calls, one after the other, with `first` in the first of them. A step begins where a layer is not after
  /// the one before.
  Result<void> layer(std::int64_t layer, std::int64_t step_rows, Use use, bool first,
                     std::span<const std::uint32_t> ids, std::span<const std::uint32_t> rows);
  Result<void> finish();

 private:
  RouteWriter(const std::filesystem::path& path, const RouteShape& shape) : shape_(shape), file_(path) {}
  void end_layer();
  Result<void> flush(std::size_t at_least);

  struct Choice {
    std::uint32_t id = 0;
    std::uint32_t rows = 0;
  };
  RouteShape shape_;
  PartFile file_;
  std::string text_;             // not yet written
  std::vector<Choice> choices_;  // of the layer
  std::int64_t layer_ = -1;
};

}  // namespace sluice::experts
