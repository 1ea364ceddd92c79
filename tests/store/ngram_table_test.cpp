// Tables kept in memory and tables read from disk give the same rows.
#include "store/ngram_table.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "support/random_model.h"
#include "support/temp_folder.h"

namespace sluice::store {
namespace {

void compare(test::RandomModel model) {
  const test::TempFolder folder;
  test::write_random_model(folder.path(), model);
  const auto text = read_text_file(folder / "config.json", 1 << 20);
  const auto config = spec::parse_config(*parse_json(*text, "config.json"), "config.json");
  ASSERT_TRUE(config.ok());
  const auto index = TensorIndex::open(folder.path());
  ASSERT_TRUE(index.ok());
  const auto quantization = canonical_quantization(config->quantization);
  const auto memory = NgramTable::open(*index, quantization, *config, 1);
  const auto disk = NgramTable::open(*index, quantization, *config, 1, 0);
  ASSERT_TRUE(memory.ok() && disk.ok());
  EXPECT_TRUE(memory->is_kept());
  EXPECT_FALSE(disk->is_kept());
  EXPECT_EQ(memory->rows(), disk->rows());
  std::vector<std::int64_t> rows(static_cast<std::size_t>(memory->rows()));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(rows.size() - 1 - i);
  std::vector<float> a(rows.size() * 32), b(a.size());
  ASSERT_TRUE(memory->read(rows, a).ok());
  ASSERT_TRUE(disk->read(rows, b).ok());
  EXPECT_EQ(a, b);
  // All rows at once and one at a time.
  std::vector<float> row(32);
  ASSERT_TRUE(disk->read(std::span(rows).subspan(5, 1), row).ok());
  EXPECT_EQ(row, std::vector<float>(a.begin() + 5 * 32, a.begin() + 6 * 32));
  EXPECT_TRUE(disk->read({}, {}).ok());
}

// Rows at any place of their files, those across the edges of blocks among them.
void compare_direct(test::RandomModel model) {
  const test::TempFolder folder;
  model.files = 2;
  test::write_random_model(folder.path(), model);
  const auto text = read_text_file(folder / "config.json", 1 << 20);
  const auto config = spec::parse_config(*parse_json(*text, "config.json"), "config.json");
  const auto index = TensorIndex::open(folder.path());
  ASSERT_TRUE(config.ok() && index.ok());
  const auto quantization = canonical_quantization(config->quantization);
  auto direct = NgramTable::open(*index, quantization, *config, 1, 0);
  ASSERT_TRUE(direct.ok());
  std::vector<std::byte> all(static_cast<std::size_t>(direct->rows() * direct->layout().row_bytes()));
  ASSERT_TRUE(direct->read_range(0, all).ok());
  ASSERT_TRUE(direct->open_direct().ok());
  const auto row_bytes = static_cast<std::size_t>(direct->layout().row_bytes());
  std::vector<std::byte> row(row_bytes);
  for (std::int64_t r = 0; r < direct->rows(); ++r) {
    ASSERT_TRUE(direct->read_row(r, row).ok());
    const auto needed = std::span(all).subspan(static_cast<std::size_t>(r) * row_bytes, row_bytes);
    ASSERT_TRUE(std::equal(row.begin(), row.end(), needed.begin())) << r;
  }
  EXPECT_FALSE(direct->read_row(direct->rows(), row).ok());
  EXPECT_FALSE(direct->read_row(-1, row).ok());
  EXPECT_FALSE(direct->read_row(0, std::span(row).first(row_bytes - 1)).ok());
}

TEST(NgramTable, RowsReadPastThePageCacheAreTheSame) {
  test::RandomModel model{.config = test::tiny_config()};
  compare_direct(model);
  model.form = test::ModelForm::kMlx;
  compare_direct(model);
}

TEST(NgramTable, MemoryAndDiskAgree) {
  test::RandomModel model{.config = test::tiny_config()};
  compare(model);
  model.form = test::ModelForm::kMlx;
  compare(model);
  model.bits = 8;
  compare(model);
}

}  // namespace
}  // namespace sluice::store
