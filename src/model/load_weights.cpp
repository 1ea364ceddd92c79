#include <fmt/format.h>

#include "model/weights.h"
#include "store/dense_reader.h"
#include "store/dense_table.h"

namespace sluice::model {
namespace {

using backend::Buffer;
using backend::Format;

class Loader {
 public:
  Loader(const store::WeightSource& source, bool with_mtp, int threads, backend::Backend& backend,
         ModelWeights& weights)
      : source_(source),
        config_(source.config()),
        reader_(source, names(config_, with_mtp), threads),
        backend_(backend),
        weights_(weights) {}

  Result<void> matrix(const std::string& name, Matrix& out) {
    SLUICE_ASSIGN(auto tensor, reader_.take(name));
    SLUICE_ASSIGN(Buffer * buffer, keep(tensor));
    out.format = tensor.format;
    out.group = tensor.group;
    out.out = tensor.shape[0];
    out.in = tensor.shape[1];
    out.data = buffer->as<std::byte>();
    if (backend::is_quantised(tensor.format)) {
      out.scales = Dev(reinterpret_cast<const std::uint16_t*>(buffer->address() + tensor.scales_offset));
      out.biases = Dev(reinterpret_cast<const std::uint16_t*>(buffer->address() + tensor.biases_offset));
    }
    return {};
  }

  Result<void> vector(const std::string& name, Dev<const float>& out) {
    SLUICE_ASSIGN(auto tensor, reader_.take(name));
    if (tensor.format != Format::kF32) {
      return make_error(ErrorCode::kUnsupported, "{}: stored quantised, needed plain values", name);
    }
    SLUICE_ASSIGN(Buffer * buffer, keep(tensor));
    out = buffer->as<float>();
    return {};
  }

  Result<void> hyper(const std::string& prefix, bool injects, HyperWeights& out) {
    SLUICE_TRY(vector(prefix + ".hc_norm", out.norm));
    SLUICE_TRY(matrix(prefix + ".input_mix_weight_down", out.down));
    SLUICE_TRY(matrix(prefix + ".input_mix_weight_up", out.up));
    if (injects) SLUICE_TRY(matrix(prefix + ".block_inject_weight", out.inject));
    return {};
  }

  Result<void> layer(const std::string& prefix, spec::LayerKind kind, LayerWeights& out) {
    SLUICE_TRY(hyper(prefix + ".attn_hyper_connection", true, out.attn_hyper));
    SLUICE_TRY(hyper(prefix + ".mlp_hyper_connection", true, out.mlp_hyper));
    if (kind == spec::LayerKind::kLinear) {
      SLUICE_TRY(delta(prefix + ".linear_attn", out.delta.emplace()));
    } else {
      SLUICE_TRY(attention(prefix + ".self_attn", out.attention.emplace()));
    }
    return moe(prefix + ".mlp", out.moe);
  }

  Result<void> ple(std::int64_t layer, PleWeights& out) {
    const std::string prefix = fmt::format("layers.{}.ple", layer);
    SLUICE_TRY(matrix(prefix + ".key_proj", out.key));
    SLUICE_TRY(matrix(prefix + ".value_proj", out.value));
    SLUICE_TRY(vector(prefix + ".norm_key", out.norm_key));
    SLUICE_TRY(vector(prefix + ".norm_query", out.norm_query));
    SLUICE_TRY(vector(prefix + ".norm_conv", out.norm_conv));
    SLUICE_TRY(vector(prefix + ".conv1d", out.conv));
    SLUICE_ASSIGN(out.hash, source_.ngram_hash(layer));
    return {};
  }

 private:
  /// The order of load_weights(), so that what is read ahead is what comes next.
  static std::vector<std::string> names(const spec::ModelConfig& config, bool with_mtp) {
    std::vector<std::string> names{"embed_tokens"};
    if (!config.tie_embeddings) names.emplace_back("lm_head");
    for (store::DenseInfo& info : store::dense_tensors(config, with_mtp)) {
      if (info.name != "embed_tokens" && info.name != "lm_head") names.push_back(std::move(info.name));
    }
    return names;
  }

  Result<Buffer*> keep(store::DenseTensor& tensor) {
    SLUICE_ASSIGN(auto buffer, backend_.adopt(std::move(tensor.buffer)));
    weights_.bytes += buffer->size();
    weights_.buffers.push_back(std::move(buffer));
    return weights_.buffers.back().get();
  }

  Result<void> delta(const std::string& prefix, DeltaWeights& out) {
    SLUICE_TRY(matrix(prefix + ".in_proj_qkv", out.qkv));
    SLUICE_TRY(matrix(prefix + ".in_proj_z", out.z));
    SLUICE_TRY(matrix(prefix + ".in_proj_a", out.a));
    SLUICE_TRY(matrix(prefix + ".in_proj_b", out.b));
    SLUICE_TRY(matrix(prefix + ".out_proj", out.out));
    SLUICE_TRY(vector(prefix + ".conv1d", out.conv));
    SLUICE_TRY(vector(prefix + ".A_log", out.a_log));
    SLUICE_TRY(vector(prefix + ".dt_bias", out.dt_bias));
    return vector(prefix + ".norm", out.norm);
  }

  Result<void> attention(const std::string& prefix, AttentionWeights& out) {
    SLUICE_TRY(matrix(prefix + ".q_proj", out.q));
    SLUICE_TRY(matrix(prefix + ".k_proj", out.k));
    SLUICE_TRY(matrix(prefix + ".v_proj", out.v));
    SLUICE_TRY(matrix(prefix + ".o_proj", out.o));
    SLUICE_TRY(vector(prefix + ".q_norm", out.q_norm));
    SLUICE_TRY(vector(prefix + ".k_norm", out.k_norm));
    if (!config_.indexer) return {};
    auto& indexer = out.indexer.emplace();
    Matrix both;
    SLUICE_TRY(matrix(prefix + ".indexer.index_qk_proj", both));
    const std::int64_t query_rows = config_.indexer->heads * config_.indexer->head_dim;
    indexer.q = rows_of(both, 0, query_rows);
    indexer.k = rows_of(both, query_rows, both.out - query_rows);
    SLUICE_TRY(vector(prefix + ".indexer.q_layernorm", indexer.q_norm));
    return vector(prefix + ".indexer.k_layernorm", indexer.k_norm);
  }

  Result<void> moe(const std::string& prefix, MoeWeights& out) {
    SLUICE_TRY(matrix(prefix + ".gate", out.router));
    SLUICE_TRY(matrix(prefix + ".shared_expert.gate_proj", out.shared_gate));
    SLUICE_TRY(matrix(prefix + ".shared_expert.up_proj", out.shared_up));
    SLUICE_TRY(matrix(prefix + ".shared_expert.down_proj", out.shared_down));
    return matrix(prefix + ".shared_expert_gate", out.shared_scalar);
  }

  // A view of some output rows of a matrix: rows lie one after another in every format.
  static Matrix rows_of(const Matrix& m, std::int64_t first, std::int64_t count) {
    Matrix view = m;
    view.out = count;
    view.data = m.data + first * m.row_bytes();
    if (backend::is_quantised(m.format)) {
      view.scales = m.scales + first * (m.in / m.group);
      view.biases = m.biases + first * (m.in / m.group);
    }
    return view;
  }

  const store::WeightSource& source_;
  const spec::ModelConfig& config_;
  store::DenseReader reader_;
  backend::Backend& backend_;
  ModelWeights& weights_;
};

}  // namespace

Result<ModelWeights> load_weights(const store::WeightSource& source, bool with_mtp, int threads,
                                  backend::Backend& backend) {
  ModelWeights weights;
  Loader loader(source, with_mtp, threads, backend, weights);
  const auto& config = source.config();
  SLUICE_TRY(loader.matrix("embed_tokens", weights.embed));
  if (!config.tie_embeddings) weights.embedding_bytes = weights.bytes;
  if (config.tie_embeddings) {
    weights.head = weights.embed;
  } else {
    SLUICE_TRY(loader.matrix("lm_head", weights.head));
  }
  SLUICE_TRY(loader.hyper("hyper_connection_mixer", false, weights.mixer));
  for (std::int64_t n = 0; n < config.layer_count(); ++n) {
    auto& layer = weights.layers.emplace_back();
    if (config.is_ple_layer(n)) SLUICE_TRY(loader.ple(n, layer.ple.emplace()));
    SLUICE_TRY(loader.layer(fmt::format("layers.{}", n), config.layers[static_cast<std::size_t>(n)], layer));
  }
  if (with_mtp) {
    auto& mtp = weights.mtp.emplace();
    SLUICE_TRY(loader.vector("mtp.pre_fc_norm_embedding", mtp.norm_embedding));
    SLUICE_TRY(loader.vector("mtp.pre_fc_norm_hidden", mtp.norm_hidden));
    SLUICE_TRY(loader.matrix("mtp.fc_embedding", mtp.fc_embedding));
    SLUICE_TRY(loader.matrix("mtp.fc_hidden", mtp.fc_hidden));
    SLUICE_TRY(loader.layer("mtp.layers.0", spec::LayerKind::kFull, mtp.layer));
    SLUICE_TRY(loader.hyper("mtp.hyper_connection_mixer", false, mtp.mixer));
  }
  return weights;
}

}  // namespace sluice::model
