// Models whose n-gram rows come from disk: the same bits as from memory; steps that fail leave nothing
// behind.
#include <gtest/gtest.h>

#include <latch>
#include <stdexcept>
#include <thread>

#include "backend/create.h"
#include "decode/logits_run.h"
#include "experts/streamed_ngrams.h"
#include "support/loaded_model.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

class NgramModel : public testing::Test {
 protected:
  void SetUp() override {
    test::write_two_tables(folder_ / "plain");
    ASSERT_TRUE(test::pack_folder(folder_ / "plain", folder_ / "packed").ok());
    for (std::int32_t i = 0; i < 90; ++i) ids_.push_back(i * i % 500 + 1);
    for (std::int32_t i = 0; i < 20; ++i) ids_.push_back(ids_[static_cast<std::size_t>(i)]);  // n-grams again
  }
  void load(const char* form, int threads = 1) {
    auto source = test::open_streamed(folder_ / form);
    source_ = source.get();
    model_.reset();
    backend_ = std::move(backend::create_backend("cpu", {threads})).value();
    auto model = model::Model::load(std::move(source), *backend_, {.max_rows = 50});
    ASSERT_TRUE(model.ok()) << model.error().message;
    model_ = std::move(model).value();
  }
  Result<decode::LogitsRun> run(std::int64_t rows = 0) {
    return decode::run_logits(*model_, ids_, {.rows = rows, .mtp = true});
  }
  decode::LogitsRun wanted(const char* form) {
    const auto kept = test::load_model(folder_ / form);
    auto result = decode::run_logits(*kept.model, ids_, {.mtp = true});
    EXPECT_TRUE(result.ok());
    return std::move(result).value();
  }
  test::TempFolder folder_;
  std::vector<std::int32_t> ids_;
  std::unique_ptr<backend::Backend> backend_;
  test::StreamedNgrams* source_ = nullptr;
  std::unique_ptr<model::Model> model_;
};

TEST_F(NgramModel, RowsFromDiskGiveTheSameBits) {
  for (const char* form : {"plain", "packed"}) {
    const auto needed = wanted(form);
    for (const int threads : {1, 2}) {
      load(form, threads);
      const std::uint64_t bytes = model_->ngram_bytes();
      for (const std::int64_t rows : {0, 1, 8}) {
        const auto found = run(rows);
        ASSERT_TRUE(found.ok()) << found.error().message;
        EXPECT_EQ(found->logits, needed.logits) << form << " rows " << rows;
        EXPECT_EQ(found->mtp_logits, needed.mtp_logits) << form << " rows " << rows;
      }
      EXPECT_EQ(model_->ngram_bytes(), bytes);
      const auto counts = model_->ngram_counts();
      EXPECT_GT(counts.cached, counts.read);  // the first run's are there in the second and third
      EXPECT_EQ(counts.wanted, counts.repeated + counts.cached + counts.read);
    }
  }
}

TEST_F(NgramModel, APassingFailureChangesNothing) {
  const auto needed = wanted("packed");
  load("packed");
  std::atomic<int> calls = 0;
  source_->fault = [&](std::int64_t, std::int64_t) -> Result<void> {
    return ++calls % 5 == 0 ? Result<void>(make_error(ErrorCode::kIo, "passing")) : Result<void>{};
  };
  const auto found = run();
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(found->logits, needed.logits);
}

TEST_F(NgramModel, AFailureEndsItsStepAndNoOther) {
  const auto needed = wanted("packed");
  load("packed");
  std::atomic<bool> broken = true;
  source_->fault = [&](std::int64_t layer, std::int64_t number) -> Result<void> {
    if (!broken || layer != 2) return {};
    return make_error(ErrorCode::kIo, "ngram.bin: page {}: Input/output error", number);
  };
  for (int i = 0; i < 2; ++i) {
    const auto failed = run();
    ASSERT_FALSE(failed.ok());
    EXPECT_NE(failed.error().message.find("n-gram table of layer 2, page "), std::string::npos)
        << failed.error().message;
    EXPECT_EQ(source_->running(), 0);
  }
  broken = false;
  const auto found = run();
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(found->logits, needed.logits);
}

// Reads of layer 2 are held back until the step is over: layer 0 fails, or throws, while they are under way.
TEST_F(NgramModel, AStepThatFailsBeforeTheRowsAreWantedLeavesNothingRunning) {
  const auto needed = wanted("packed");
  load("packed");
  const auto state = std::move(model_->new_state(200)).value();
  for (const bool throws : {false, true}) {
    std::latch begun(1), go(1);
    std::atomic_flag first;
    source_->fault = [&](std::int64_t layer, std::int64_t) -> Result<void> {
      if (layer != 2) return {};
      if (!first.test_and_set()) begun.count_down();
      go.wait();
      return {};
    };
    std::thread other;
    model::ForwardOptions options;
    options.on_layer = [&](std::int64_t, std::int64_t, backend::Dev<const float>) -> Result<void> {
      begun.wait();
      other = std::thread([&] { go.count_down(); });
      if (throws) throw std::runtime_error("from outside");
      return make_error(ErrorCode::kCancelled, "enough");
    };
    const model::Segment segment{state.get(), std::span(ids_).first(40)};
    if (throws) {
      EXPECT_THROW((void)model_->forward(std::span(&segment, 1), options), std::runtime_error);
    } else {
      EXPECT_EQ(model_->forward(std::span(&segment, 1), options).error().code, ErrorCode::kCancelled);
    }
    EXPECT_EQ(source_->running(), 0);
    EXPECT_EQ(state->length() + state->pending(), 0);
    other.join();
  }
  source_->fault = {};
  const auto found = run();
  ASSERT_TRUE(found.ok()) << found.error().message;
  EXPECT_EQ(found->logits, needed.logits);
}

}  // namespace
}  // namespace sluice
