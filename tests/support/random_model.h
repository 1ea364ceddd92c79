// Checkpoints of any geometry with random weights, in the forms the engine reads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/json.h"

namespace sluice::test {

enum class ModelForm {
  kReleased,  // model.language_model.*, BF16, raw norms, fused experts, shard_N
  kFlat,      // the same as a text-only export: model.*, config without text_config
  kMlx,       // language_model.model.*, quantised, folded norms, switch_mlp, shards.N, convolutions swapped
};

struct RandomModel {
  Json config;  // as released: nested, without quantization; see tiny_config()
  ModelForm form = ModelForm::kReleased;
  std::uint64_t seed = 1;
  int bits = 4;                     // kMlx: 4 or 8
  int group = 64;                   // kMlx: matrices whose rows it does not divide stay BF16
  int table_group = 32;             // kMlx: of the n-gram table, as an override in the config
  bool fold_norms = true;           // kMlx
  bool split_experts = false;       // not kMlx: one tensor an expert
  bool with_mtp = true;             // leave the MTP head out although the config has one
  bool with_hash_constants = true;  // the I64 tensors of the n-gram hash
  int files = 1;                    // more: numbered shards and an index
};

/// The geometry of faults.md: 4 layers (three linear, one full, PLE on layer 1), 16 experts top 4, hidden 64,
/// 4 streams, vocabulary 512, heads of 1009 rows or a little more, one MTP layer. Change `["text_config"]`.
Json tiny_config();

/// Writes config.json and the weights into an existing folder. The same seed and geometry give the same
/// values in every form (up to quantisation), tensor by tensor. A failure to write fails the test.
void write_random_model(const std::filesystem::path& folder, const RandomModel& model);

}  // namespace sluice::test
