// A source of weights as a checkpoint in MLX form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "base/result.h"
#include "pack/options.h"
#include "store/source.h"

namespace sluice::pack {

struct CheckpointOptions {
  /// Weight files hold at most so much, or one tensor.
  std::uint64_t shard_bytes = std::uint64_t{4} << 30;
  int jobs = 0;        // threads; 0: one for each core
  bool force = false;  // replace a checkpoint that is there
  Progress on_progress;
};

struct CheckpointReport {
  std::uint64_t bytes = 0;  // of the weight files' tensors
  std::size_t files = 0;    // of weights
};

/// Writes config.json with a quantization block, and the weights in MLX form: stacked experts, folded norms,
/// the n-gram table in shards. Experts are taken in their best precision, which must be 8 or 4 bits; other
/// matrices stay as they are, 8 or 4 bits or BF16, and whatever differs from the experts' format is named in
/// the block. Packing the checkpoint keeps every code. Memory is bounded; config.json comes last, and an
/// error leaves nothing behind.
///
/// Errors: a format that MLX has none for; `folder` is not empty and, with `force`, holds more than a
/// checkpoint's weights and config; not enough free space; writing fails.
Result<CheckpointReport> write_checkpoint(const store::WeightSource& source,
                                          const std::filesystem::path& folder,
                                          const CheckpointOptions& options);

}  // namespace sluice::pack
