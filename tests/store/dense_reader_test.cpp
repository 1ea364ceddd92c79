#include "store/dense_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "store/dense_table.h"
#include "support/random_model.h"
#include "support/temp_folder.h"

namespace sluice::store {
namespace {

class DenseReaderTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    test::RandomModel model;
    model.config = test::tiny_config();
    test::write_random_model(folder_.path(), model);
    auto opened = open_checkpoint(folder_.path());
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    source_ = std::move(*opened);
    for (const DenseInfo& info : dense_tensors(source_->config(), true)) names_.push_back(info.name);
  }

  void expect_same(const Result<DenseTensor>& found, std::string_view name) const {
    ASSERT_TRUE(found.ok()) << found.error().message;
    const auto needed = source_->read_dense(name);
    ASSERT_TRUE(needed.ok()) << needed.error().message;
    EXPECT_EQ(found->shape, needed->shape) << name;
    EXPECT_TRUE(std::ranges::equal(found->buffer.bytes(), needed->buffer.bytes())) << name;
  }

  test::TempFolder folder_;
  std::unique_ptr<WeightSource> source_;
  std::vector<std::string> names_;
};

TEST_P(DenseReaderTest, GivesWhatTheSourceDoesInAnyOrder) {
  for (const bool backwards : {false, true}) {
    DenseReader reader(*source_, names_, GetParam());
    std::vector<std::string> order = names_;
    if (backwards) std::reverse(order.begin(), order.end());
    for (const std::string& name : order) expect_same(reader.take(name), name);
  }
}

TEST_P(DenseReaderTest, ATensorCanBeTakenTwiceAndOneThatNobodyAnnouncedToo) {
  DenseReader reader(*source_, {names_.front()}, GetParam());
  expect_same(reader.take(names_.front()), names_.front());
  expect_same(reader.take(names_.front()), names_.front());
  expect_same(reader.take(names_.back()), names_.back());
}

TEST_P(DenseReaderTest, ATensorThatIsMissingIsAnErrorOfItsOwn) {
  std::vector<std::string> names = names_;
  names.insert(names.begin() + 3, "layers.77.mlp.gate");
  DenseReader reader(*source_, names, GetParam());
  for (const std::string& name : names) {
    const auto found = reader.take(name);
    EXPECT_EQ(found.ok(), name != names[3]);
    const std::string message = found.ok() ? names[3] : found.error().message;
    EXPECT_NE(message.find("layers.77.mlp.gate"), std::string::npos);
  }
}

TEST_P(DenseReaderTest, WhoTakesNothingWaitsForNothing) {
  DenseReader reader(*source_, names_, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Threads, DenseReaderTest, testing::Values(0, 1, 3));

}  // namespace
}  // namespace sluice::store
