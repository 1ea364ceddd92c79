// The parts of parse_config that have rules of their own. Each reads its fields, checks them against what
// the config holds already, and records errors in the reader's FieldErrors.
#pragma once

#include "spec/config.h"
#include "spec/config_fields.h"

namespace sluice::spec {

/// rope_parameters, or the older rope_scaling with rope_theta and partial_rotary_factor beside it.
/// Needs head_dim and max_positions.
void read_rope(const FieldReader& text, ModelConfig& config);

/// The five indexer keys: all or none. Needs the rope config.
void read_indexer(const FieldReader& text, ModelConfig& config);

/// The hashed n-gram embedding. Needs layers, hidden and eos_token.
void read_ple(const FieldReader& text, ModelConfig& config);

/// MLX `quantization`, or `quantization_config` in either MLX's or the released FP8 form.
void read_quantization(const FieldReader& root, ModelConfig& config);

}  // namespace sluice::spec
