// Statistics of the experts' inputs: what is counted, and the way through the file to the packer.
#include "pack/importance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/file.h"
#include "base/output_file.h"
#include "engine/collect_importance.h"
#include "quant/record.h"
#include "store/safetensors.h"
#include "support/fixtures.h"
#include "support/loaded_model.h"
#include "support/temp_folder.h"

namespace sluice::engine {
namespace {

const std::filesystem::path kTiny = std::filesystem::path(SLUICE_TEST_DATA) / "model" / "tiny4";
constexpr std::size_t kTokens = 600;  // a whole window and a part of one

class ImportanceTest : public testing::Test {
 protected:
  ImportanceTest() {
    std::mt19937 random(5);
    for (std::size_t i = 0; i < kTokens; ++i) ids_.push_back(static_cast<std::int32_t>(random() % 512));
  }
  void collect(const std::filesystem::path& path, const std::string& backend = "cpu", std::int64_t rows = 256,
               int threads = 1) {
    const auto loaded = test::load_model(kTiny, backend, {.max_rows = rows}, threads);
    ASSERT_NE(loaded.model, nullptr);
    config_ = loaded.model->config();
    const auto collector = ImportanceCollector::create(*loaded.model);
    ASSERT_TRUE(collector.ok());
    ASSERT_TRUE((*collector)->run(ids_).ok());
    EXPECT_EQ((*collector)->tokens(), static_cast<std::int64_t>(kTokens));
    const auto written = (*collector)->write(path);
    ASSERT_TRUE(written.ok()) << written.error().message;
  }

  test::TempFolder folder_;
  std::vector<std::int32_t> ids_;
  spec::ModelConfig config_;
};

TEST_F(ImportanceTest, EveryRowCountsOnceForEachOfItsExperts) {
  collect(folder_ / "importance");
  const auto file = test::Fixture::load(folder_ / "importance");
  for (std::int64_t layer = 0; layer <= config_.layer_count(); ++layer) {
    // The head has no row for the first token of a window.
    const double rows = static_cast<double>(kTokens) - (layer == config_.layer_count() ? 2 : 0);
    double count = 0;
    for (const float n : file.floats(fmt::format("experts.{}.count", layer))) count += double{n};
    EXPECT_EQ(count, rows * static_cast<double>(config_.experts_per_token)) << layer;
    EXPECT_EQ(double{file.floats(fmt::format("experts.{}.rows", layer))[0]}, rows);
  }
  EXPECT_FALSE(file.has(fmt::format("experts.{}.count", config_.layer_count() + 1)));
}

TEST_F(ImportanceTest, SumsAreThoseOfADirectComputation) {
  collect(folder_ / "importance");
  const auto file = test::Fixture::load(folder_ / "importance");
  const auto loaded = test::load_model(kTiny);
  const std::int64_t layer = config_.layer_count() - 1;
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  const auto inter = static_cast<std::size_t>(config_.expert_inter);
  const auto experts = static_cast<std::size_t>(config_.experts);
  std::vector<double> squares(experts * hidden), inner(experts * inter), means(experts * inter);
  double moment = 0;  // of inputs 5 and 2
  loaded.model->set_expert_observer([&](const model::ExpertStep& step) -> Result<void> {
    if (step.record_layer != layer) return {};
    const auto& layout = loaded.model->source().record_layout();
    std::vector<std::byte> record(static_cast<std::size_t>(layout.bytes()));
    std::vector<float> values(static_cast<std::size_t>(quant::record_weights(layout)));
    for (std::size_t entry = 0; entry < step.entries.size(); ++entry) {
      const std::size_t expert = step.ids[entry];
      SLUICE_TRY(loaded.model->source().read_record(0, layer, step.ids[entry], record));
      SLUICE_TRY(quant::record_values(layout, record, values));
      for (std::uint32_t p = step.begin[entry]; p < step.begin[entry + 1]; ++p) {
        const float* x = step.x.address() + step.pair_row[p] * hidden;
        for (std::size_t i = 0; i < hidden; ++i) squares[expert * hidden + i] += double{x[i]} * double{x[i]};
        for (std::size_t i = 0; i < inter; ++i) {
          double gate = 0, up = 0;
          for (std::size_t j = 0; j < hidden; ++j) {
            gate += double{values[i * hidden + j]} * double{x[j]};
            up += double{values[(inter + i) * hidden + j]} * double{x[j]};
          }
          const double h = gate / (1 + std::exp(-gate)) * up;
          inner[expert * inter + i] += h * h;
          means[expert * inter + i] += h;
        }
      }
    }
    for (std::int64_t r = 0; r < step.rows; ++r) {
      const float* x = step.x.address() + static_cast<std::size_t>(r) * hidden;
      moment += double{x[5]} * double{x[2]};
    }
    return {};
  });
  for (std::size_t at = 0; at < kTokens; at += 256) {
    const auto state = std::move(loaded.model->new_state(512)).value();
    // The same windows: 512 tokens in two steps, then the rest.
    const std::size_t rows = std::min<std::size_t>(at == 0 ? 512 : 256, kTokens - at);
    for (std::size_t done = 0; done < rows; done += 256) {
      const auto count = std::min<std::size_t>(256, rows - done);
      const model::Segment segment{state.get(), std::span(ids_).subspan(at + done, count)};
      ASSERT_TRUE(loaded.model->forward(std::span(&segment, 1), {}).ok());
      ASSERT_TRUE(state->commit(static_cast<std::int64_t>(count)).ok());
    }
    if (at == 0) at = 256;
  }
  const auto compare = [&](const std::string& name, const std::vector<double>& wanted) {
    const auto found = file.floats(fmt::format("experts.{}.{}", layer, name));
    const std::vector<float> narrow(wanted.begin(), wanted.end());
    EXPECT_LT(test::relative_error(found, narrow), 1e-4) << name;
  };
  compare("hidden", squares);
  compare("inter", inner);
  compare("inter_mean", means);
  const double found = double{file.floats(fmt::format("experts.{}.moment", layer))[5 * 6 / 2 + 2]};
  EXPECT_NEAR(found, moment, 1e-5 * std::fabs(moment));
}

TEST_F(ImportanceTest, TheSameBytesInAnyStepsAndOnAnyThreads) {
  collect(folder_ / "a");
  collect(folder_ / "b", "cpu", 37, 2);
  EXPECT_EQ(read_text_file(folder_ / "a", 1 << 30).value(), read_text_file(folder_ / "b", 1 << 30).value());
  collect(folder_ / "c", "scalar", 512);
  const auto a = test::Fixture::load(folder_ / "a"), c = test::Fixture::load(folder_ / "c");
  EXPECT_LT(test::relative_error(a.floats("experts.1.inter"), c.floats("experts.1.inter")), 1e-3);
}

TEST_F(ImportanceTest, ThePackerReadsWhatWasWritten) {
  collect(folder_ / "importance");
  const auto file = test::Fixture::load(folder_ / "importance");
  const auto read = pack::Importance::load(folder_ / "importance", config_);
  ASSERT_TRUE(read.ok()) << read.error().message;
  const auto count = file.floats("experts.2.count");
  const auto sums = file.floats("experts.2.hidden");
  const auto means = file.floats("experts.2.inter_mean");
  const auto hidden = static_cast<std::size_t>(config_.hidden);
  double all = 0, rows = 0;  // of input 3
  for (std::size_t e = 0; e < count.size(); ++e) {
    all += double{sums[e * hidden + 3]};
    rows += double{count[e]};
  }
  for (std::size_t e = 0; e < count.size(); ++e) {
    const double wanted = (double{sums[e * hidden + 3]} + 16 * all / rows) / (double{count[e]} + 16);
    EXPECT_NEAR(double{(*read)->hidden(2, static_cast<std::int64_t>(e))[3]} / wanted, 1, 1e-5);
    EXPECT_NEAR(double{(*read)->inter_mean(2, static_cast<std::int64_t>(e))[0]},
                double{means[e * static_cast<std::size_t>(config_.expert_inter)]} / (double{count[e]} + 16),
                1e-6);
  }
  for (std::int64_t layer = 0; layer <= config_.layer_count(); ++layer) {
    ASSERT_NE((*read)->hidden_factor(layer), nullptr);
    EXPECT_EQ((*read)->hidden_factor(layer)->size(), config_.hidden);
  }
}

TEST_F(ImportanceTest, FilesThatDoNotFitAreRefused) {
  collect(folder_ / "importance");
  auto other = config_;
  other.expert_inter *= 2;
  const auto wrong = pack::Importance::load(folder_ / "importance", other);
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.error().message.find("experts.0.inter"), std::string::npos) << wrong.error().message;

  const std::string whole = read_text_file(folder_ / "importance", 1 << 30).value();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{7}, std::size_t{100}, whole.size() - 1}) {
    ASSERT_TRUE(write_text_file(folder_ / "cut", whole.substr(0, bytes)).ok());
    EXPECT_FALSE(pack::Importance::load(folder_ / "cut", config_).ok()) << bytes;
  }
  EXPECT_FALSE(pack::Importance::load(folder_ / "absent", config_).ok());

  const auto file = test::Fixture::load(folder_ / "importance");
  const auto with = [&](const std::string& name, float value) {
    std::vector<store::TensorData> tensors;
    std::vector<float> changed;
    for (const auto& [key, tensor] : file.tensors()) {
      store::TensorData data{key, tensor.dtype, tensor.shape, tensor.bytes};
      if (key == name) {
        changed = file.floats(name);
        changed[1] = value;
        data.bytes = std::as_bytes(std::span(changed));
      }
      tensors.push_back(data);
    }
    EXPECT_TRUE(store::write_safetensors(folder_ / "changed", tensors).ok());
    const auto read = pack::Importance::load(folder_ / "changed", config_);
    return read.ok() ? std::string() : read.error().message;
  };
  for (const char* name : {"experts.0.count", "experts.1.hidden", "experts.3.inter"}) {
    EXPECT_NE(with(name, -1).find(name), std::string::npos);
    EXPECT_NE(with(name, NAN).find(name), std::string::npos);
  }
  EXPECT_EQ(with("experts.1.inter_mean", -1), "");
  EXPECT_NE(with("experts.1.inter_mean", INFINITY).find("experts.1.inter_mean"), std::string::npos);
  // Inputs that cannot go together like that.
  EXPECT_NE(with("experts.1.moment", 1e30F).find("experts.1.moment"), std::string::npos);
}

TEST_F(ImportanceTest, TheObserverEndsWithTheCollectorAndItsErrorsEndTheStep) {
  const auto loaded = test::load_model(kTiny);
  { ASSERT_TRUE(ImportanceCollector::create(*loaded.model).ok()); }
  const auto state = std::move(loaded.model->new_state(64)).value();
  const model::Segment segment{state.get(), std::span(ids_).first(9)};
  ASSERT_TRUE(loaded.model->forward(std::span(&segment, 1), {}).ok());
  ASSERT_TRUE(state->commit(9).ok());
  loaded.model->set_expert_observer(
      [](const model::ExpertStep&) -> Result<void> { return make_error(ErrorCode::kIo, "enough"); });
  const auto failed = loaded.model->forward(std::span(&segment, 1), {});
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().message, "enough");
  EXPECT_EQ(state->length(), 9);
}

}  // namespace
}  // namespace sluice::engine
