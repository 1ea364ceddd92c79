// Checkpoints of all forms and geometries open, and the forms of one model read alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "base/numbers.h"
#include "store/dense_table.h"
#include "store/source.h"
#include "support/edit_model.h"
#include "support/random_model.h"
#include "support/temp_folder.h"
#include "support/weights.h"

namespace sluice::store {
namespace {

using test::ModelForm;
using test::RandomModel;

/// A random model in a folder of its own, opened.
struct Opened {
  test::TempFolder folder;
  std::unique_ptr<WeightSource> source;

  explicit Opened(const RandomModel& model, const std::function<void(test::TensorMap&)>& change = {}) {
    test::write_random_model(folder.path(), model);
    if (change) test::edit_tensors(folder / "model.safetensors", change);
    auto opened = open_checkpoint(folder.path());
    if (opened) {
      source = std::move(*opened);
    } else {
      ADD_FAILURE() << opened.error().message;
    }
  }
};

std::vector<float> dense(const WeightSource& source, std::string_view name) {
  auto tensor = source.read_dense(name);
  if (!tensor) {
    ADD_FAILURE() << tensor.error().message;
    return {};
  }
  return test::dense_values(*tensor);
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(a[i]) * a[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

/// Compares everything two sources give: dense tensors, records and table rows.
void expect_same(const WeightSource& a, const WeightSource& b, double tolerance) {
  ASSERT_EQ(a.has_mtp(), b.has_mtp());
  for (const DenseInfo& info : dense_tensors(a.config(), a.has_mtp())) {
    const auto x = dense(a, info.name), y = dense(b, info.name);
    ASSERT_EQ(x.size(), y.size()) << info.name;
    EXPECT_LE(distance(x, y), tolerance) << info.name;
  }
  const spec::RecordLayout la = a.record_layout(), lb = b.record_layout();
  std::vector<std::byte> ra(static_cast<std::size_t>(la.bytes())), rb(static_cast<std::size_t>(lb.bytes()));
  const std::int64_t layers = a.config().layer_count() + (a.has_mtp() ? 1 : 0);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (std::int64_t e = 0; e < a.config().experts; ++e) {
      ASSERT_TRUE(a.read_record(0, layer, e, ra).ok());
      ASSERT_TRUE(b.read_record(0, layer, e, rb).ok());
      for (int m = 0; m < 3; ++m) {
        EXPECT_LE(distance(test::record_values(la, ra, m), test::record_values(lb, rb, m)), tolerance);
      }
    }
  }
  if (!a.config().ple) return;
  for (const std::int64_t layer : a.config().ple->layers) {
    EXPECT_EQ(a.ngram_hash(layer)->multipliers, b.ngram_hash(layer)->multipliers);
    std::vector<std::int64_t> rows;
    for (std::int64_t r = 0; r < a.ngram_hash(layer)->rows; r += 37) rows.push_back(r);
    std::vector<float> x(rows.size() * static_cast<std::size_t>(a.config().ple->head_dim())), y(x.size());
    ASSERT_TRUE(a.read_ngram_rows(layer, rows, x).ok());
    ASSERT_TRUE(b.read_ngram_rows(layer, rows, y).ok());
    EXPECT_LE(distance(x, y), tolerance);
  }
}

RandomModel tiny() {
  return {.config = test::tiny_config()};
}

TEST(Forms, FlatSplitAndShardedAreTheReleasedModel) {
  const Opened released(tiny());
  RandomModel model = tiny();
  model.form = ModelForm::kFlat;
  expect_same(*released.source, *Opened(model).source, 0);
  model = tiny();
  model.split_experts = true;
  model.files = 5;
  const Opened sharded(model);
  EXPECT_EQ(sharded.source->files().size(), 5U);
  expect_same(*released.source, *sharded.source, 0);
  // Without the index, numbered shards are found by their names.
  std::filesystem::remove(sharded.folder / "model.safetensors.index.json");
  const auto unlisted = open_checkpoint(sharded.folder.path());
  ASSERT_TRUE(unlisted.ok()) << unlisted.error().message;
  expect_same(*released.source, **unlisted, 0);
}

TEST(Forms, Quantised) {
  const Opened released(tiny());
  for (const int bits : {4, 8}) {
    for (const int group : {32, 64}) {
      for (const bool fold : {true, false}) {
        RandomModel model = tiny();
        model.form = ModelForm::kMlx;
        model.bits = bits;
        model.group = group;
        model.fold_norms = fold;
        const Opened mlx(model);
        EXPECT_EQ(mlx.source->form(), fmt::format("mlx-{}bit", bits));
        EXPECT_EQ(mlx.source->record_layout().geometry.group, group);
        expect_same(*released.source, *mlx.source, bits == 4 ? 0.15 : 0.01);
      }
    }
  }
}

TEST(Forms, QuantisedInGroupsOf128) {
  RandomModel model = tiny();
  Json& text = model.config["text_config"];
  for (const char* field : {"hidden_size", "moe_intermediate_size", "shared_expert_intermediate_size"})
    text[field] = 128;
  const Opened released(model);
  model.form = ModelForm::kMlx;
  model.group = 128;
  const Opened mlx(model);
  // The bottleneck of 64 cannot be cut in groups of 128 and stays BF16.
  EXPECT_EQ(mlx.source->read_dense("layers.0.mlp_hyper_connection.input_mix_weight_up")->format,
            spec::Format::kBf16);
  EXPECT_EQ(mlx.source->read_dense("layers.0.mlp_hyper_connection.input_mix_weight_down")->format,
            spec::Format::kQ4);
  expect_same(*released.source, *mlx.source, 0.15);
}

TEST(Forms, QuantisedBuffersAreAligned) {
  RandomModel model = tiny();
  model.form = ModelForm::kMlx;
  const Opened mlx(model);
  const auto tensor =
      mlx.source->read_dense("layers.0.linear_attn.in_proj_b");  // 4 rows: parts of 128 and 8 bytes
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->scales_offset % 64, 0U);
  EXPECT_EQ(tensor->biases_offset % 64, 0U);
  EXPECT_GE(tensor->biases_offset, tensor->scales_offset + 8);
}

TEST(Forms, MlxNamesForMtpAndHead) {
  RandomModel model = tiny();
  model.form = ModelForm::kMlx;
  const Opened plain(model);
  const Opened prefixed(model, [](test::TensorMap& tensors) {
    test::TensorMap renamed;
    for (auto& [name, tensor] : tensors) {
      renamed[name.starts_with("mtp.") ? "language_model." + name : name] = std::move(tensor);
    }
    tensors = std::move(renamed);
  });
  EXPECT_TRUE(prefixed.source->has_mtp());
  expect_same(*plain.source, *prefixed.source, 0);
}

// A text-only MLX export: flat names, yet folded norms.
TEST(Forms, FlatMlx) {
  RandomModel model = tiny();
  model.form = ModelForm::kMlx;
  const Opened plain(model);
  const Opened flat(model, [](test::TensorMap& tensors) {
    test::TensorMap renamed;
    for (auto& [name, tensor] : tensors) {
      renamed[name.starts_with("mtp.") ? name : name.substr(std::string("language_model.").size())] =
          std::move(tensor);
    }
    tensors = std::move(renamed);
  });
  expect_same(*plain.source, *flat.source, 0);
}

TEST(Forms, UnsplitTableAndFusedNamesWithWeight) {
  const Opened plain(tiny());
  const Opened renamed(tiny(), [](test::TensorMap& tensors) {
    const std::string table = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.";
    test::FixtureTensor whole = tensors.at(table + "shard_0.weight");
    for (int i = 1; i < 4; ++i) {
      const auto& part = tensors.at(table + fmt::format("shard_{}.weight", i));
      whole.shape[0] += part.shape[0];
      whole.bytes.insert(whole.bytes.end(), part.bytes.begin(), part.bytes.end());
    }
    for (int i = 0; i < 4; ++i) tensors.erase(table + fmt::format("shard_{}.weight", i));
    tensors[table + "weight"] = whole;
    for (const char* name : {"gate_up_proj", "down_proj"}) {
      auto node = tensors.extract("mtp.layers.0.mlp.experts." + std::string(name));
      node.key() += ".weight";
      tensors.insert(std::move(node));
    }
  });
  expect_same(*plain.source, *renamed.source, 0);
}

TEST(Forms, Float32AndFloat16) {
  const Opened plain(tiny());
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16}) {
    const Opened wide(tiny(), [dtype](test::TensorMap& tensors) {
      for (auto& [name, tensor] : tensors) {
        if (tensor.dtype != Dtype::kBf16) continue;
        std::vector<float> values(tensor.bytes.size() / 2);
        std::vector<std::uint16_t> halves(values.size());
        for (std::size_t i = 0; i < values.size(); ++i) {
          BFloat16 b;
          std::memcpy(&b, tensor.bytes.data() + 2 * i, 2);
          values[i] = to_float(b);
          halves[i] = to_half(values[i]).bits;
        }
        tensor = dtype == Dtype::kF32 ? test::make_tensor(dtype, tensor.shape, values)
                                      : test::make_tensor(dtype, tensor.shape, halves);
      }
    });
    EXPECT_EQ(wide.source->form(), "f32");
    EXPECT_EQ(wide.source->read_dense("lm_head")->format, spec::Format::kF32);
    // Values below 2^-14 lose bits in binary16.
    expect_same(*plain.source, *wide.source, dtype == Dtype::kF32 ? 0 : 1e-5);
  }
}

TEST(Forms, ScalesInFloat32WhereExact) {
  RandomModel model = tiny();
  model.form = ModelForm::kMlx;
  const Opened plain(model);
  const Opened wide(model, [](test::TensorMap& tensors) {
    for (auto& [name, tensor] : tensors) {
      if (!name.ends_with(".scales") && !name.ends_with(".biases")) continue;
      std::vector<float> values(tensor.bytes.size() / 2);
      for (std::size_t i = 0; i < values.size(); ++i) {
        BFloat16 b;
        std::memcpy(&b, tensor.bytes.data() + 2 * i, 2);
        values[i] = to_float(b);
      }
      tensor = test::make_tensor(Dtype::kF32, tensor.shape, values);
    }
  });
  expect_same(*plain.source, *wide.source, 0);
}

// model.md 2.2: values times the scale of their tile; here 64 x 64 matrices, so one scale each.
TEST(Forms, Fp8ExpertsAndTable) {
  RandomModel model = tiny();
  model.split_experts = true;
  const auto code_of = [](std::size_t i) { return static_cast<std::uint8_t>(i * 37 % 120 + (i % 2) * 128); };
  const Opened fp8(model, [&](test::TensorMap& tensors) {
    test::TensorMap added;
    for (auto& [name, tensor] : tensors) {
      const bool expert = name.find(".experts.") != std::string::npos;
      if (!expert && name.find(".shard_") == std::string::npos) continue;
      std::vector<std::uint8_t> codes(tensor.bytes.size() / 2);
      for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = code_of(i);
      tensor = test::make_tensor(Dtype::kF8E4M3, tensor.shape, codes);
      const auto scale = test::make_tensor<std::uint16_t>(Dtype::kBf16, {1}, {to_bfloat16(0.0625F).bits});
      if (expert) {
        added[name + "_scale_inv"] = scale;
        added[name + "_scale_inv"].shape = {1, 1};
      } else {
        added[name.substr(0, name.find(".shard_")) + ".weight_scale"] = scale;
      }
    }
    tensors.merge(added);
  });
  EXPECT_EQ(fp8.source->form(), "fp8");
  const spec::RecordLayout layout = fp8.source->record_layout();
  EXPECT_EQ(layout.format, spec::Format::kF32);
  std::vector<std::byte> record(static_cast<std::size_t>(layout.bytes()));
  ASSERT_TRUE(fp8.source->read_record(0, 4, 15, record).ok());
  for (int m = 0; m < 3; ++m) {
    const auto values = test::record_values(layout, record, m);
    for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], e4m3_to_float(code_of(i)) * 0.0625F);
  }
  std::vector<float> row(32);
  ASSERT_TRUE(fp8.source->read_ngram_rows(1, std::vector<std::int64_t>{3}, row).ok());
  for (std::size_t i = 0; i < row.size(); ++i) EXPECT_EQ(row[i], e4m3_to_float(code_of(96 + i)) * 0.0625F);
}

TEST(Forms, DerivedHashConstantsServeWhenTheFileHasNone) {
  const Opened with(tiny());
  RandomModel model = tiny();
  model.with_hash_constants = false;
  const Opened without(model);
  expect_same(*with.source, *without.source, 0);
  EXPECT_EQ(with.source->ngram_hash(1)->sizes, without.source->ngram_hash(1)->sizes);
}

TEST(Forms, HashConstantsInTheFileWin) {
  const std::vector<std::int64_t> other = {3, 5, 7};
  const Opened opened(tiny(), [&](test::TensorMap& tensors) {
    tensors["model.language_model.layers.1.ple.ple_embedding.layer_multipliers"] =
        test::make_tensor(Dtype::kI64, {3}, other);
  });
  EXPECT_EQ(opened.source->ngram_hash(1)->multipliers, other);
}

TEST(Forms, VisionAndStrayTensorsAreLeftAlone) {
  const Opened opened(tiny(), [](test::TensorMap& tensors) {
    const std::vector<float> values(24);
    tensors["model.visual.blocks.0.norm1.weight"] = test::make_tensor(Dtype::kF32, {4, 6}, values);
    tensors["model.language_model.layers.1.ple.ple_embedding.token_lookup"] =
        test::make_tensor(Dtype::kF32, {24}, values);
    tensors["something.else"] = test::make_tensor(Dtype::kF32, {24}, values);
    tensors["model.language_model.hyper_connection_mixer.block_inject_weight.weight"] =
        test::make_tensor(Dtype::kF32, {24}, values);
  });
  ASSERT_NE(opened.source, nullptr);
  EXPECT_EQ(opened.source->parameters().vision, 24U);
  EXPECT_TRUE(opened.source->missing().empty());
}

TEST(Geometries, WithoutMtp) {
  RandomModel model = tiny();
  model.with_mtp = false;
  const Opened left_out(model);
  EXPECT_FALSE(left_out.source->has_mtp());
  EXPECT_THAT(left_out.source->missing(), testing::ElementsAre(testing::HasSubstr("MTP")));
  const auto read = left_out.source->read_dense("mtp.fc_hidden");
  ASSERT_FALSE(read.ok());
  EXPECT_THAT(read.error().message, testing::HasSubstr("no MTP head"));
  std::vector<std::byte> record(static_cast<std::size_t>(left_out.source->record_layout().bytes()));
  EXPECT_FALSE(left_out.source->read_record(0, 4, 0, record).ok());
  model.config["text_config"]["mtp_num_hidden_layers"] = 0;
  const Opened none(model);
  EXPECT_FALSE(none.source->has_mtp());
  EXPECT_TRUE(none.source->missing().empty());
}

TEST(Geometries, AnnouncedVisionIsReportedMissing) {
  RandomModel model = tiny();
  model.config["vision_config"] = {{"depth", 27}};
  EXPECT_THAT(Opened(model).source->missing(), testing::ElementsAre("vision tower"));
}

TEST(Geometries, TiedEmbeddings) {
  RandomModel model = tiny();
  model.config["text_config"]["tie_word_embeddings"] = true;
  for (const ModelForm form : {ModelForm::kReleased, ModelForm::kMlx}) {
    model.form = form;
    const Opened tied(model);
    EXPECT_EQ(dense(*tied.source, "lm_head"), dense(*tied.source, "embed_tokens"));
    EXPECT_EQ(tied.source->parameters().head, 0U);
  }
}

TEST(Geometries, OfAllKinds) {
  struct Case {
    const char* name;
    std::function<void(Json&)> change;
  };
  const std::vector<Case> cases = {
      {"no PLE", [](Json& t) { t["ple_layer_ids"] = nullptr; }},
      {"no indexer",
       [](Json& t) {
         for (const char* key : {"indexer_n_heads", "indexer_kv_heads", "indexer_head_dim", "indexer_budget",
                                 "indexer_compress_ratio"}) {
           t.erase(key);
         }
       }},
      {"two streams", [](Json& t) { t["hc_count"] = 2; }},
      {"five streams", [](Json& t) { t["hc_count"] = 5; }},
      {"one kv head, three v heads a k head",
       [](Json& t) {
         t["num_key_value_heads"] = 1;
         t["linear_num_value_heads"] = 6;
       }},
      {"all linear",
       [](Json& t) { t["layer_types"] = Json(std::vector<std::string>(4, "linear_attention")); }},
      {"full first",
       [](Json& t) {
         t["layer_types"] = {"full_attention", "linear_attention", "full_attention", "full_attention"};
       }},
      {"one layer",
       [](Json& t) {
         t["num_hidden_layers"] = 1;
         t["layer_types"] = {"linear_attention"};
         t["ple_layer_ids"] = {1};
       }},
      {"two PLE layers",
       [](Json& t) {
         t["ple_layer_ids"] = {1, 3};
       }},
      {"4-grams and wider windows",
       [](Json& t) {
         t["ngram_size"] = 4;
         t["heads_per_ngram"] = 1;
         t["ple_embed_dim"] = 96;
         t["ple_conv_kernel_size"] = 3;
       }},
      {"kernels of one", [](Json& t) { t["linear_conv_kernel_dim"] = t["ple_conv_kernel_size"] = 1; }},
      {"one expert", [](Json& t) { t["num_experts"] = t["num_experts_per_tok"] = 1; }},
      {"another inner width", [](Json& t) { t["moe_intermediate_size"] = 32; }},
      {"one shard of the table", [](Json& t) { t["split_ngram_parts"] = 1; }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    RandomModel model = tiny();
    c.change(model.config["text_config"]);
    const Opened released(model);
    model.form = ModelForm::kMlx;
    model.group = 32;
    const Opened mlx(model);
    ASSERT_TRUE(released.source && mlx.source);
    expect_same(*released.source, *mlx.source, 0.15);
  }
}

TEST(Paths, SpacesLettersAndLinks) {
  const test::TempFolder folder;
  const auto real = folder /
                    "M\xc3\xb6"
                    "dell \xe6\xa8\xa1 1";
  std::filesystem::create_directory(real);
  test::write_random_model(real, tiny());
  EXPECT_TRUE(open_checkpoint(real).ok());
  std::filesystem::create_directory_symlink(real, folder / "link");
  const auto linked = open_checkpoint(folder / "link");
  ASSERT_TRUE(linked.ok());
  EXPECT_EQ((*linked)->folder(), folder / "link");
  // As a hub's cache has it: files that are links into another folder.
  const auto hub = folder / "hub";
  std::filesystem::create_directory(hub);
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::create_symlink(real / file, hub / file);
  EXPECT_TRUE(open_checkpoint(hub).ok());
}

TEST(Threads, RecordsAndRowsFromSeveralAtOnce) {
  RandomModel model = tiny();
  model.form = ModelForm::kMlx;
  const Opened opened(model);
  const WeightSource& source = *opened.source;
  const auto bytes = static_cast<std::size_t>(source.record_layout().bytes());
  std::vector<std::vector<std::byte>> needed(16, std::vector<std::byte>(bytes));
  for (std::int64_t e = 0; e < 16; ++e) {
    ASSERT_TRUE(source.read_record(0, 1, e, needed[static_cast<std::size_t>(e)]).ok());
  }
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::byte> record(bytes);
      std::vector<float> row(32);
      for (std::size_t i = 0; i < 64; ++i) {
        const std::size_t e = (i * 5 + t) % 16;
        if (!source.read_record(0, 1, static_cast<std::int64_t>(e), record) || record != needed[e])
          ++wrong[t];
        if (!source.read_ngram_rows(1, std::vector<std::int64_t>{static_cast<std::int64_t>(i)}, row))
          ++wrong[t];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace sluice::store
