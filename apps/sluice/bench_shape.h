// sluice bench --shape: the speed of a geometry, with random weights made in the backend's memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "sluice/engine.h"
#include "spec/geometries.h"

namespace sluice::cli {

struct BenchShapeOptions {
  std::string shape;
  spec::GeometryOverrides overrides;
  std::string precision = "4";  // of the experts
  std::string dense = "4";
  std::string backend = "cpu";
  int threads = 0;
  int device = 0;
  bool exact = false;
  bool kv_q8 = false;
  std::vector<std::int64_t> prefill;         // tokens of prompts
  std::int64_t decode = 32;                  // steps
  std::vector<std::int64_t> depth = {4096};  // tokens before decoding
  std::vector<std::int64_t> rows = {1};      // of a decode step
  std::int64_t chunk = 2048;                 // rows of a prefill step
  /// Of a GPU for experts, before a pinned pool (by itself for all of them); absent: it has them all.
  std::optional<std::uint64_t> device_pool;
  std::optional<std::uint64_t> pool;
  bool in_place = false;
  std::uint64_t seed = 1;
  bool json = false;
};

/// All records of a layer hold the same random numbers: they lie apart, and that is what their speed depends
/// on. Depth is made, not read: caches are filled with noise.
Result<void> bench_shape(const BenchShapeOptions& options);

}  // namespace sluice::cli
