// Rows of a step read in a batch: the bits of direct reading, in bounded memory, whatever fails.
#include "experts/ngram_rows.h"

#include <gtest/gtest.h>

#include <latch>
#include <random>
#include <thread>

#include "experts/streamed_ngrams.h"
#include "support/temp_folder.h"

namespace sluice::experts {
namespace {

using test::StreamedNgrams;

constexpr std::int64_t kRows = 80;
constexpr std::int64_t kHeads = 5;

class NgramRowsTest : public testing::Test {
 protected:
  void SetUp() override {
    test::write_two_tables(folder_ / "plain");
    ASSERT_TRUE(test::pack_folder(folder_ / "plain", folder_ / "packed").ok());
  }
  std::unique_ptr<NgramRows> make(const store::WeightSource& source, NgramRows::Options options = {}) {
    options.rows = kRows;
    options.heads = kHeads;
    auto made = NgramRows::create(source, options);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
    if (!made.ok()) return nullptr;
    EXPECT_EQ((*made)->bytes(), NgramRows::cost(NgramRows::tables_of(source).value(), options));
    return std::move(made).value();
  }
  /// Rows of a step, the same for each layer.
  static Result<NgramRows::Step> start(NgramRows& rows, const std::vector<std::int64_t>& wanted,
                                       Use use = Use::kDecode) {
    return rows.start(static_cast<std::int64_t>(wanted.size()) / kHeads, use,
                      [&](std::int64_t, std::span<std::int64_t> out) {
                        ASSERT_EQ(out.size(), wanted.size());
                        std::copy(wanted.begin(), wanted.end(), out.begin());
                      });
  }
  static Result<std::vector<float>> take(NgramRows& rows, std::int64_t layer) {
    std::vector<float> values;
    std::int64_t next = 0;
    SLUICE_TRY(rows.take(layer, [&](std::int64_t first, std::span<const float> some) {
      EXPECT_EQ(first, next);
      next += static_cast<std::int64_t>(some.size()) / (kHeads * kColumns);
      values.insert(values.end(), some.begin(), some.end());
    }));
    return values;
  }
  static std::vector<float> direct(const store::WeightSource& source, std::int64_t layer,
                                   const std::vector<std::int64_t>& wanted) {
    std::vector<float> values(wanted.size() * kColumns);
    EXPECT_TRUE(source.read_ngram_rows(layer, wanted, values).ok());
    return values;
  }
  static void expect_step(NgramRows& rows, const store::WeightSource& source,
                          const std::vector<std::int64_t>& wanted, Use use = Use::kDecode) {
    const auto step = start(rows, wanted, use);
    ASSERT_TRUE(step.ok()) << step.error().message;
    for (const std::int64_t layer : {0, 2}) {
      const auto values = take(rows, layer);
      ASSERT_TRUE(values.ok()) << values.error().message;
      ASSERT_EQ(*values, direct(source, layer, wanted));
    }
  }
  static constexpr std::size_t kColumns = 32;
  test::TempFolder folder_;
};

TEST_F(NgramRowsTest, ValuesAreThoseOfDirectReading) {
  test::write_two_tables(folder_ / "mlx", test::ModelForm::kMlx);
  for (const char* form : {"plain", "mlx", "packed"}) {
    const auto source = test::open_streamed(folder_ / form);
    const auto layout = source->ngram_layout(0).value();
    const std::int64_t in_page = source->ngram_reads(0).block_rows;
    EXPECT_EQ(in_page > 1, std::string_view(form) == "packed");
    for (const std::size_t threads : {1U, 3U, 16U}) {
      for (const std::uint64_t cache : {std::uint64_t{0}, std::uint64_t{20000}, std::uint64_t{16} << 20}) {
        const auto rows = make(*source, {.cache_bytes = cache, .threads = threads});
        const std::uint64_t bytes = rows->bytes();
        const int before = source->reads();
        std::mt19937 random(static_cast<unsigned>(threads + cache));
        for (int i = 0; i < 40; ++i) {
          const std::int64_t count = i % 4 == 0 ? kRows : 1 + random() % 3;
          // Of all rows, of few (with duplicates), and around the edges of pages.
          const std::int64_t range = i % 3 == 0 ? layout.rows : 50;
          std::vector<std::int64_t> wanted;
          for (std::int64_t w = 0; w < count * kHeads; ++w) {
            const auto row = static_cast<std::int64_t>(random()) % range;
            wanted.push_back(i % 5 == 4 ? std::min((row % 3 + 1) * in_page - row % 2, layout.rows - 1) : row);
          }
          wanted.front() = layout.rows - 1;
          wanted.back() = 0;
          expect_step(*rows, *source, wanted, i % 2 == 0 ? Use::kDecode : Use::kPrefill);
        }
        EXPECT_EQ(rows->bytes(), bytes);
        const NgramCounts counts = rows->counts();
        EXPECT_EQ(counts.wanted, counts.repeated + counts.cached + counts.read);
        EXPECT_EQ(counts.reads, static_cast<std::uint64_t>(source->reads() - before));
        EXPECT_EQ(counts.bytes_read,
                  counts.reads * static_cast<std::uint64_t>(source->ngram_reads(0).block_bytes));
      }
    }
  }
}

TEST_F(NgramRowsTest, ARowAndAPageAreReadOnceAStepAndARowInTheCacheNotAtAll) {
  const auto source = test::open_streamed(folder_ / "packed");
  const auto rows = make(*source);
  const std::int64_t in_page = source->ngram_reads(0).block_rows;
  // Two pages of each table: the last row of one, the first two of the next, one of them twice.
  const std::vector<std::int64_t> wanted{in_page, in_page - 1, in_page + 1, in_page, in_page - 1};
  expect_step(*rows, *source, wanted);
  NgramCounts counts = rows->counts();
  EXPECT_EQ(counts.wanted, 10U);
  EXPECT_EQ(counts.repeated, 4U);
  EXPECT_EQ(counts.cached, 0U);
  EXPECT_EQ(counts.read, 6U);
  EXPECT_EQ(counts.reads, 4U);
  EXPECT_EQ(counts.bytes_read, 4U * 4096);
  expect_step(*rows, *source, wanted);
  counts = rows->counts();
  EXPECT_EQ(counts.cached, 6U);
  EXPECT_EQ(counts.reads, 4U);
}

TEST_F(NgramRowsTest, KeptTablesAreLookedUpInMemory) {
  const auto source = test::open_folder(folder_ / "packed");
  const auto rows = make(*source);
  EXPECT_GE(rows->bytes(), source->ngram_bytes(0) + source->ngram_bytes(2));
  EXPECT_LT(rows->bytes(), source->ngram_bytes(0) + source->ngram_bytes(2) + 100000);  // and no cache
  expect_step(*rows, *source, {1, 2, 3, 2, 1});
  EXPECT_EQ(rows->counts().cached, 10U);
  EXPECT_EQ(rows->counts().reads, 0U);
}

TEST_F(NgramRowsTest, ComputingGoesOnWhileRowsAreRead) {
  const auto source = test::open_streamed(folder_ / "packed");
  std::latch go(1);
  source->fault = [&](std::int64_t, std::int64_t) -> Result<void> {
    go.wait();
    return {};
  };
  const auto rows = make(*source);
  const std::vector<std::int64_t> wanted{5, 500, 900, 1300, 1700};
  const auto step = start(*rows, wanted);
  ASSERT_TRUE(step.ok());  // and here the first layers are computed
  EXPECT_EQ(rows->counts().reads, 0U);
  go.count_down();
  EXPECT_EQ(*take(*rows, 0), direct(*source, 0, wanted));
  EXPECT_EQ(*take(*rows, 2), direct(*source, 2, wanted));
}

TEST_F(NgramRowsTest, AFailureThatPassesIsNotSeen) {
  const auto source = test::open_streamed(folder_ / "packed");
  std::atomic<int> calls = 0;
  source->fault = [&](std::int64_t, std::int64_t) -> Result<void> {
    if (++calls % 3 == 1) return make_error(ErrorCode::kIo, "ngram.bin: input/output error");
    return {};
  };
  const auto rows = make(*source, {.threads = 1});
  for (int i = 0; i < 20; ++i) expect_step(*rows, *source, {i, 3 * i + 60, 1000 - i, 1500, 7});
  EXPECT_GT(rows->counts().retries, 0U);
}

TEST_F(NgramRowsTest, AFailureThatStaysNamesTheTableAndThePageAndEndsWithTheStep) {
  for (const char* form : {"plain", "packed"}) {
    const auto source = test::open_streamed(folder_ / form);
    const std::int64_t in_page = source->ngram_reads(0).block_rows;
    bool broken = true;
    std::atomic<int> calls = 0;
    source->fault = [&](std::int64_t layer, std::int64_t number) -> Result<void> {
      if (!broken || layer != 2 || number != 3) return {};
      ++calls;
      return make_error(ErrorCode::kIo, "reading 4096 bytes at offset 12288: Input/output error");
    };
    const auto rows = make(*source);
    const std::vector<std::int64_t> wanted{0, 3 * in_page, 1000, 1200, 1201};
    for (int i = 0; i < 3; ++i) {
      const auto step = start(*rows, wanted);
      ASSERT_TRUE(step.ok());
      EXPECT_EQ(*take(*rows, 0), direct(*source, 0, wanted));
      const auto failed = take(*rows, 2);
      ASSERT_FALSE(failed.ok());
      EXPECT_EQ(failed.error().code, ErrorCode::kIo);
      const std::string& text = failed.error().message;
      EXPECT_NE(text.find("table of layer 2, " + std::string(in_page > 1 ? "page 3" : "row 3")),
                std::string::npos)
          << text;
      EXPECT_NE(text.find("Input/output error"), std::string::npos) << text;
    }
    EXPECT_EQ(calls, 3 * 3);  // bounded
    expect_step(*rows, *source, {0, 1, 2, 4 * in_page, 4});
    broken = false;  // nobody reads
    expect_step(*rows, *source, wanted);
  }
}

TEST_F(NgramRowsTest, AFlippedBitIsAnErrorAndNoValue) {
  const auto flip = [&](std::streamoff at) {
    std::fstream file(folder_ / "packed" / "ngram.bin", std::ios::binary | std::ios::in | std::ios::out);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 8));
  };
  const auto source = test::open_streamed(folder_ / "packed");
  const std::int64_t in_page = source->ngram_reads(0).block_rows;
  const auto rows = make(*source);
  const std::vector<std::int64_t> wanted{2 * in_page, 5, 6, 7, 8};
  flip(2 * 4096 + 11);
  {
    const auto step = start(*rows, wanted);
    const auto failed = take(*rows, 0);
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(failed.error().message.find("page 2"), std::string::npos) << failed.error().message;
    EXPECT_NE(failed.error().message.find("wrong checksum"), std::string::npos) << failed.error().message;
  }
  flip(2 * 4096 + 11);
  expect_step(*rows, *source, wanted);
}

TEST_F(NgramRowsTest, AFileThatEndsEarlyIsAnError) {
  const auto source = test::open_streamed(folder_ / "packed");
  const auto rows = make(*source);
  const std::int64_t last = source->ngram_layout(0)->rows - 1;
  std::filesystem::resize_file(folder_ / "packed" / "ngram.bin", 4096 + 100);
  const auto step = start(*rows, {0, 1, 2, last, last});
  ASSERT_TRUE(step.ok());
  for (const std::int64_t layer : {0, 2}) {
    const auto failed = take(*rows, layer);
    ASSERT_FALSE(failed.ok());
    EXPECT_NE(failed.error().message.find("shrank"), std::string::npos) << failed.error().message;
  }
}

TEST_F(NgramRowsTest, AStepThatEndsEarlyLeavesNothingRunning) {
  const auto source = test::open_streamed(folder_ / "packed");
  std::latch begun(1), go(1);
  source->fault = [&](std::int64_t, std::int64_t) -> Result<void> {
    if (!begun.try_wait()) begun.count_down();
    go.wait();
    return {};
  };
  const auto rows = make(*source, {.threads = 1});
  std::vector<std::int64_t> wanted;
  for (std::int64_t i = 0; i < kRows * kHeads; ++i) wanted.push_back(i * 5);
  auto step = start(*rows, wanted);
  ASSERT_TRUE(step.ok());
  begun.wait();
  std::thread other([&] { go.count_down(); });
  step->reset();
  EXPECT_EQ(source->running(), 0);
  EXPECT_EQ(rows->running(), 0U);
  other.join();
  EXPECT_LT(source->reads(), 3);  // what had not begun never did
  expect_step(*rows, *source, wanted);
}

TEST_F(NgramRowsTest, RowsThatATableLacksAreRefused) {
  const auto source = test::open_streamed(folder_ / "packed");
  const auto rows = make(*source);
  const std::int64_t count = source->ngram_layout(0)->rows;
  for (const std::int64_t row : {std::int64_t{-1}, count, INT64_MAX, INT64_MIN}) {
    const auto refused = start(*rows, {1, 2, row, 3, 4});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(source->reads(), 0);
  expect_step(*rows, *source, {1, 2, 3, 4, count - 1});
}

TEST_F(NgramRowsTest, ALongPromptLeavesTheRowsOfDecodingInTheCache) {
  const auto source = test::open_streamed(folder_ / "packed");
  const auto rows = make(*source, {.cache_bytes = 30000});
  const std::vector<std::int64_t> decoded{11, 222, 333, 444, 555};
  for (int i = 0; i < 3; ++i) expect_step(*rows, *source, decoded);
  for (std::int64_t first = 600; first + kRows * kHeads < 2100; first += kRows * kHeads) {
    std::vector<std::int64_t> prompt(kRows * kHeads);
    for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = first + static_cast<std::int64_t>(i);
    expect_step(*rows, *source, prompt, Use::kPrefill);
  }
  const auto before = rows->counts().reads;
  expect_step(*rows, *source, decoded);
  EXPECT_EQ(rows->counts().reads, before);
}

// Steps of all sizes, failing and given up now and then. The thread sanitizer watches this one.
TEST_F(NgramRowsTest, ManyStepsUnderStress) {
  const auto source = test::open_streamed(folder_ / "packed");
  std::atomic<std::uint32_t> calls = 0;
  source->fault = [&](std::int64_t, std::int64_t number) -> Result<void> {
    if (++calls % 11 == 0) return make_error(ErrorCode::kIo, "passing");
    if (number == 7) return make_error(ErrorCode::kIo, "staying");
    return {};
  };
  const auto rows = make(*source, {.cache_bytes = 10000, .threads = 4, .retries = 20});
  const std::uint64_t bytes = rows->bytes();
  const std::int64_t in_page = source->ngram_reads(0).block_rows;
  std::mt19937 random(5);
  for (int i = 0; i < 600; ++i) {
    std::vector<std::int64_t> wanted((1 + random() % (i % 7 == 0 ? kRows : 4)) * kHeads);
    bool fails = false;
    for (auto& row : wanted) {
      row = static_cast<std::int64_t>(random()) % source->ngram_layout(0)->rows;
      if (i % 3 != 0 && row / in_page == 7) row = 0;
      fails = fails || row / in_page == 7;
    }
    const auto step = start(*rows, wanted, random() % 2 == 0 ? Use::kDecode : Use::kPrefill);
    ASSERT_TRUE(step.ok());
    if (random() % 4 == 0) continue;  // given up before the first layer
    const auto values = take(*rows, 0);
    ASSERT_EQ(values.ok(), !fails);
    if (values.ok()) {
      ASSERT_EQ(*values, direct(*source, 0, wanted));
    }
  }
  EXPECT_EQ(source->running(), 0);
  EXPECT_EQ(rows->bytes(), bytes);
}

}  // namespace
}  // namespace sluice::experts
