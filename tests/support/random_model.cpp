#include "support/random_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <vector>

#include "base/numbers.h"
#include "spec/geometries.h"
#include "spec/ngram_hash.h"
#include "store/dense_table.h"
#include "store/safetensors.h"
#include "support/quantise.h"

namespace sluice::test {
namespace {

/// Random numbers that are the same everywhere: splitmix64, seeded by a tensor's name.
class Random {
 public:
  Random(std::uint64_t seed, std::string_view name) : state_(seed * 0x9E3779B97F4A7C15ULL) {
    for (const char c : name) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  double uniform() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }
  /// Close to a normal distribution, mean 0 and deviation 1.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t state_;
};

struct Owned {
  std::string name;
  store::Dtype dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

std::size_t elements(const std::vector<std::int64_t>& shape) {
  std::size_t n = 1;
  for (const std::int64_t side : shape) n *= static_cast<std::size_t>(side);
  return n;
}

class Writer {
 public:
  Writer(const RandomModel& model, const spec::ModelConfig& config) : model_(model), config_(config) {}

  std::vector<Owned> make() {
    const bool mtp = model_.with_mtp && config_.mtp_layers > 0;
    for (const store::DenseInfo& info : store::dense_tensors(config_, mtp)) add_dense(info);
    for (std::int64_t i = 0; i < config_.layer_count(); ++i) add_experts(fmt::format("layers.{}.mlp.", i));
    if (mtp) add_experts("mtp.layers.0.mlp.");
    if (config_.ple) {
      for (std::size_t i = 0; i < config_.ple->layers.size(); ++i) {
        add_table(config_.ple->layers[i], static_cast<std::int64_t>(i));
      }
    }
    return std::move(tensors_);
  }

 private:
  [[nodiscard]] bool mlx() const { return model_.form == ModelForm::kMlx; }

  [[nodiscard]] std::string file_name(const std::string& canonical) const {
    if (canonical.starts_with("mtp.")) return canonical;
    if (canonical.starts_with("lm_head")) return (mlx() ? "language_model." : "") + canonical;
    switch (model_.form) {
      case ModelForm::kReleased:
        return "model.language_model." + canonical;
      case ModelForm::kFlat:
        return "model." + canonical;
      default:
        return "language_model.model." + canonical;
    }
  }

  /// Values as bfloat16 holds them.
  [[nodiscard]] std::vector<float> draw(const std::string& canonical, std::size_t count, double mean,
                                        double deviation) const {
    Random random(model_.seed, canonical);
    std::vector<float> values(count);
    for (float& v : values) v = to_float(to_bfloat16(static_cast<float>(mean + deviation * random.normal())));
    return values;
  }

  void add_bf16(std::string name, std::vector<std::int64_t> shape, const std::vector<float>& values) {
    std::vector<std::uint16_t> bits(values.size());
    std::transform(values.begin(), values.end(), bits.begin(), [](float v) { return to_bfloat16(v).bits; });
    tensors_.push_back({std::move(name), store::Dtype::kBf16, std::move(shape), bytes_of(bits)});
  }

  /// A matrix under `module` (a file name without .weight), quantised where the form asks for it.
  void add_matrix(const std::string& module, std::vector<std::int64_t> shape,
                  const std::vector<float>& values, int group, bool keep_bf16) {
    if (!mlx() || keep_bf16 || shape.back() % group != 0) {
      return add_bf16(module + ".weight", std::move(shape), values);
    }
    const Quantised q = quantise(values, model_.bits, group);
    std::vector<std::int64_t> sides = shape;
    shape.back() = shape.back() * model_.bits / 32;
    sides.back() /= group;
    tensors_.push_back({module + ".weight", store::Dtype::kU32, shape, bytes_of(q.codes)});
    tensors_.push_back({module + ".scales", store::Dtype::kBf16, sides, bytes_of(q.scales)});
    tensors_.push_back({module + ".biases", store::Dtype::kBf16, sides, bytes_of(q.biases)});
  }

  void add_dense(const store::DenseInfo& info) {
    const std::string file = file_name(info.name);
    const std::size_t count = elements(info.shape);
    switch (info.kind) {
      case store::DenseKind::kMatrix: {
        const bool embed = info.name == "embed_tokens";
        const double deviation = embed ? 1.0 : 1.0 / std::sqrt(static_cast<double>(info.shape[1]));
        const bool router = info.name.ends_with("mlp.gate") || info.name.ends_with("shared_expert_gate");
        return add_matrix(file, info.shape, draw(info.name, count, 0, deviation), model_.group, router);
      }
      case store::DenseKind::kNorm: {
        std::vector<float> values = draw(info.name, count, 0, 0.1);
        if (mlx() && model_.fold_norms) {
          for (float& v : values) v += 1.0F;
        }
        return add_bf16(file + ".weight", info.shape, values);
      }
      case store::DenseKind::kConv: {
        auto shape = mlx() ? std::vector{info.shape[0], info.shape[1], std::int64_t{1}}
                           : std::vector{info.shape[0], std::int64_t{1}, info.shape[1]};
        return add_bf16(file + ".weight", std::move(shape), draw(info.name, count, 0, 0.4));
      }
      case store::DenseKind::kVector: {
        const bool norm = info.name.ends_with(".norm");
        // Decays between about 0.2 and 0.99 a token, as trained models have them.
        const double mean = norm ? 1.0 : info.name.ends_with("A_log") ? 0.5 : -1.5;
        return add_bf16(norm ? file + ".weight" : file, info.shape,
                        draw(info.name, count, mean, norm ? 0.1 : 0.7));
      }
    }
  }

  void add_experts(const std::string& prefix) {
    const std::int64_t e = config_.experts, h = config_.hidden, f = config_.expert_inter;
    const auto drawn = [&](const char* name, std::int64_t in) {
      return draw(prefix + name, static_cast<std::size_t>(e * h * f), 0,
                  1.0 / std::sqrt(static_cast<double>(in)));
    };
    const std::vector<float> gate = drawn("gate", h), up = drawn("up", h), down = drawn("down", f);
    const std::string file = file_name(prefix);
    const auto one = static_cast<std::ptrdiff_t>(h * f);
    if (mlx()) {
      add_matrix(file + "switch_mlp.gate_proj", {e, f, h}, gate, model_.group, false);
      add_matrix(file + "switch_mlp.up_proj", {e, f, h}, up, model_.group, false);
      add_matrix(file + "switch_mlp.down_proj", {e, h, f}, down, model_.group, false);
    } else if (model_.split_experts) {
      for (std::int64_t i = 0; i < e; ++i) {
        const auto part = [&](const std::vector<float>& all) {
          return std::vector<float>(all.begin() + i * one, all.begin() + (i + 1) * one);
        };
        const std::string name = file + fmt::format("experts.{}.", i);
        add_bf16(name + "gate_proj.weight", {f, h}, part(gate));
        add_bf16(name + "up_proj.weight", {f, h}, part(up));
        add_bf16(name + "down_proj.weight", {h, f}, part(down));
      }
    } else {
      std::vector<float> both;
      for (std::int64_t i = 0; i < e; ++i) {
        both.insert(both.end(), gate.begin() + i * one, gate.begin() + (i + 1) * one);
        both.insert(both.end(), up.begin() + i * one, up.begin() + (i + 1) * one);
      }
      add_bf16(file + "experts.gate_up_proj", {e, 2 * f, h}, both);
      add_bf16(file + "experts.down_proj", {e, h, f}, down);
    }
  }

  void add_table(std::int64_t layer, std::int64_t index) {
    auto hash = spec::derive_ngram_hash(config_, index);
    if (!hash) {
      ADD_FAILURE() << hash.error().message;
      return;
    }
    const std::string name = fmt::format("layers.{}.ple.ple_embedding.", layer);
    const std::string file = file_name(name);
    const std::int64_t columns = config_.ple->head_dim();
    const std::int64_t parts = config_.ple->parts;
    const std::int64_t each = (hash->rows + parts - 1) / parts;
    const std::vector<float> values =
        draw(name + "table", static_cast<std::size_t>(each * parts * columns), 0, 0.5);
    for (std::int64_t p = 0; p < parts; ++p) {
      const auto start = values.begin() + p * each * columns;
      const std::string shard = file + fmt::format("ngram_embedding.{}{}", mlx() ? "shards." : "shard_", p);
      add_matrix(shard, {each, columns}, {start, start + each * columns}, model_.table_group, false);
    }
    if (!model_.with_hash_constants) return;
    const auto add = [&](const char* constant, const std::vector<std::int64_t>& v) {
      tensors_.push_back({file + constant, store::Dtype::kI64, {std::ssize(v)}, bytes_of(v)});
    };
    add("layer_multipliers", hash->multipliers);
    add("ngram_heads_vocab_sizes", hash->sizes);
    add("ngram_heads_offsets", hash->offsets);
  }

  const RandomModel& model_;
  const spec::ModelConfig& config_;
  std::vector<Owned> tensors_;
};

Json config_of(const RandomModel& model, const spec::ModelConfig& config) {
  Json json = model.config;
  if (model.form == ModelForm::kFlat) {
    json = model.config["text_config"];
    json["architectures"] = {"Qwen4ExpForCausalLM"};
  }
  if (model.form == ModelForm::kMlx) {
    Json quantization = {{"group_size", model.group}, {"bits", model.bits}, {"mode", "affine"}};
    if (config.ple) {
      for (const std::int64_t layer : config.ple->layers) {
        quantization[fmt::format("language_model.model.layers.{}.ple.ple_embedding.ngram_embedding", layer)] =
            {{"group_size", model.table_group}, {"bits", model.bits}};
      }
    }
    json["quantization"] = quantization;
  }
  return json;
}

void write_file(const std::filesystem::path& path, const Json& json) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << dump_json(json, 1);
  EXPECT_TRUE(out.good()) << path;
}

}  // namespace

Json tiny_config() {
  return spec::named_geometry("tiny").value();
}

void write_random_model(const std::filesystem::path& folder, const RandomModel& model) {
  const auto config = spec::parse_config(model.config, "config of the random model");
  if (!config) {
    ADD_FAILURE() << config.error().message;
    return;
  }
  write_file(folder / "config.json", config_of(model, *config));
  const std::vector<Owned> tensors = Writer(model, *config).make();

  Json weight_map = Json::object();
  const auto files = static_cast<std::size_t>(model.files);
  for (std::size_t f = 0; f < files; ++f) {
    const std::string name =
        files == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, files);
    std::vector<store::TensorData> part;
    for (std::size_t i = tensors.size() * f / files; i < tensors.size() * (f + 1) / files; ++i) {
      part.push_back({tensors[i].name, tensors[i].dtype, tensors[i].shape, tensors[i].bytes});
      weight_map[tensors[i].name] = name;
    }
    const auto written = store::write_safetensors(folder / name, part, {{"format", "pt"}});
    EXPECT_TRUE(written.ok()) << written.error().message;
  }
  if (files > 1) write_file(folder / "model.safetensors.index.json", {{"weight_map", weight_map}});
}

}  // namespace sluice::test
