// The dense weights of a model in a backend's memory. Shapes as in docs/model.md, [out, in].
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "spec/config.h"
#include "spec/ngram_hash.h"
#include "store/source.h"

namespace sluice::model {

using backend::Dev;
using backend::Matrix;

/// Reads the wide residual and, except in the final mixers, writes a sub-layer's output back.
struct HyperWeights {
  Dev<const float> norm;  // [W] effective multiplier
  Matrix down;            // [R, W]
  Matrix up;              // [W, R]
  Matrix inject;          // [C, W]; out == 0 in a mixer
};

struct DeltaWeights {
  Matrix qkv;              // [2 Gk dk + Gv dv, H]
  Matrix z;                // [Gv dv, H]
  Matrix a, b;             // [Gv, H]
  Matrix out;              // [H, Gv dv]
  Dev<const float> conv;   // [channels][Kc]
  Dev<const float> a_log;  // [Gv]
  Dev<const float> dt_bias;
  Dev<const float> norm;  // [dv], plain
};

struct IndexerWeights {
  Matrix q;                 // [Ni Di, H]: the first rows of index_qk_proj
  Matrix k;                 // [Di, H]: the last
  Dev<const float> q_norm;  // [Di]
  Dev<const float> k_norm;
};

struct AttentionWeights {
  Matrix q;                 // [Nq 2 D, H]: per head D query rows, then D gate rows
  Matrix k, v;              // [Nk D, H]
  Matrix o;                 // [H, Nq D]
  Dev<const float> q_norm;  // [D]
  Dev<const float> k_norm;
  std::optional<IndexerWeights> indexer;
};

struct MoeWeights {
  Matrix router;                  // [E, H]
  Matrix shared_gate, shared_up;  // [Fs, H]
  Matrix shared_down;             // [H, Fs]
  Matrix shared_scalar;           // [1, H]: the shared expert's gate
};

struct PleWeights {
  Matrix key;                                        // [W, embed]
  Matrix value;                                      // [H, embed]
  Dev<const float> norm_key, norm_query, norm_conv;  // [W]
  Dev<const float> conv;                             // [W][Kp]
  spec::NgramHash hash;
};

struct LayerWeights {
  std::optional<PleWeights> ple;
  HyperWeights attn_hyper, mlp_hyper;
  std::optional<DeltaWeights> delta;          // a linear layer has this,
  std::optional<AttentionWeights> attention;  // a full layer this
  MoeWeights moe;
};

struct MtpWeights {
  Dev<const float> norm_embedding;  // [H]
  Dev<const float> norm_hidden;     // [W]
  Matrix fc_embedding, fc_hidden;   // [H, H]
  LayerWeights layer;
  HyperWeights mixer;
};

struct ModelWeights {
  Matrix embed;  // [Vc, H]
  Matrix head;   // [Vc, H]
  HyperWeights mixer;
  std::vector<LayerWeights> layers;
  std::optional<MtpWeights> mtp;

  std::vector<std::unique_ptr<backend::Buffer>> buffers;  // owns everything above
  std::uint64_t bytes = 0;
  std::uint64_t embedding_bytes = 0;  // of those, the table's, where the head has weights of its own
};

/// Reads every dense weight by `threads` threads; `with_mtp` also the MTP head's.
Result<ModelWeights> load_weights(const store::WeightSource& source, bool with_mtp, int threads,
                                  backend::Backend& backend);

}  // namespace sluice::model
