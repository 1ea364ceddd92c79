// The golden files of the operations, on every backend; and files that are not what they should be.
#include "backend/golden/golden.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "backend/on_backend.h"
#include "store/safetensors.h"

namespace sluice::backend {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Golden : public OnBackend {};

TEST_P(Golden, EveryFilePasses) {
  const auto results = run_golden(SLUICE_TEST_DATA "/kernels", backend());
  ASSERT_TRUE(results.ok()) << results.error().message;
  std::set<std::string> files;
  for (const GoldenResult& r : *results) {
    files.insert(r.file);
    EXPECT_TRUE(r.pass) << r.file << " " << r.operation << " " << r.note << ": error " << r.error
                        << ", tolerance " << r.tolerance;
    EXPECT_FALSE(r.operation.empty()) << r.file;
    EXPECT_EQ(r.exact, r.tolerance == 0) << r.file;
  }
  std::size_t present = 0;
  for (const auto& entry : fs::directory_iterator(SLUICE_TEST_DATA "/kernels")) {
    present += entry.path().extension() == ".safetensors" ? 1 : 0;
  }
  EXPECT_EQ(files.size(), present);
  EXPECT_EQ(present, 47U);
}

SLUICE_ON_EVERY_BACKEND(Golden);

class BrokenGolden : public OnBackend {
 protected:
  void SetUp() override {
    OnBackend::SetUp();
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    std::string name = fmt::format("sluice-golden-{}-{}", ::getpid(), test->name());
    std::replace(name.begin(), name.end(), '/', '-');
    dir_ = fs::path(testing::TempDir()) / name;
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  static std::span<const std::byte> bytes_of(const std::vector<float>& values) {
    return std::as_bytes(std::span(values));
  }

  /// The one result of the one file in the directory.
  GoldenResult result() {
    const auto results = run_golden(dir_, backend());
    if (!results.ok()) return {"", "", 0, 0, false, true, results.error().message};
    EXPECT_EQ(results->size(), 1U);
    return results->empty() ? GoldenResult{} : results->front();
  }

  fs::path dir_;
};

TEST_P(BrokenGolden, AnUnknownNameIsAFailure) {
  const std::vector<float> x(4);
  ASSERT_TRUE(
      store::write_safetensors(dir_ / "silu_rowses.safetensors",
                               std::vector<store::TensorData>{{"in_x", store::Dtype::kF32, {4}, bytes_of(x)}})
          .ok());
  EXPECT_FALSE(result().pass);
  EXPECT_THAT(result().note, HasSubstr("no operation"));
}

TEST_P(BrokenGolden, ACutFileIsAFailure) {
  fs::copy_file(SLUICE_TEST_DATA "/kernels/silu_rows.safetensors", dir_ / "silu_rows.safetensors");
  fs::resize_file(dir_ / "silu_rows.safetensors", fs::file_size(dir_ / "silu_rows.safetensors") - 1);
  EXPECT_FALSE(result().pass);
  EXPECT_EQ(result().file, "silu_rows.safetensors");
  fs::resize_file(dir_ / "silu_rows.safetensors", 3);
  EXPECT_FALSE(result().pass);
  fs::resize_file(dir_ / "silu_rows.safetensors", 0);
  EXPECT_FALSE(result().pass);
}

TEST_P(BrokenGolden, MissingOrMisshapenPartsAreFailures) {
  const std::vector<float> x(4, 1.0F);
  const auto write = [&](std::vector<store::TensorData> tensors,
                         std::map<std::string, std::string> metadata) {
    const auto written = store::write_safetensors(dir_ / "silu_rows.safetensors", tensors, metadata);
    EXPECT_TRUE(written.ok()) << written.error().message;
    return result();
  };
  const store::TensorData in{"in_x", store::Dtype::kF32, {4}, bytes_of(x)};
  const store::TensorData out{"out_x", store::Dtype::kF32, {4}, bytes_of(x)};
  EXPECT_THAT(write({in, out}, {}).note, HasSubstr("div"));
  EXPECT_THAT(write({in, out}, {{"div", "four"}}).note, HasSubstr("four"));
  EXPECT_THAT(write({out}, {{"div", "4"}}).note, HasSubstr("in_x"));
  EXPECT_THAT(write({in}, {{"div", "4"}}).note, HasSubstr("out_x"));
  const store::TensorData square{"in_x", store::Dtype::kF32, {2, 2}, bytes_of(x)};
  EXPECT_THAT(write({square, out}, {{"div", "4"}}).note, HasSubstr("[2, 2]"));
  const store::TensorData integers{"in_x", store::Dtype::kI32, {4}, bytes_of(x)};
  EXPECT_THAT(write({integers, out}, {{"div", "4"}}).note, HasSubstr("I32"));
  const auto wrong = write({in, out}, {{"div", "4"}});
  EXPECT_FALSE(wrong.pass);
  EXPECT_EQ(wrong.operation, "silu_rows");
  EXPECT_GT(wrong.error, 0.5);
}

TEST_P(BrokenGolden, AnIndexOutsideItsTensorIsAFailure) {
  const std::vector<float> x(8, 1.0F);
  const std::vector<std::uint32_t> index{2};
  const std::vector<float> out(4, 1.0F);
  ASSERT_TRUE(
      store::write_safetensors(
          dir_ / "gather_rows.safetensors",
          std::vector<store::TensorData>{{"in_x", store::Dtype::kF32, {2, 4}, bytes_of(x)},
                                         {"in_idx", store::Dtype::kU32, {1}, std::as_bytes(std::span(index))},
                                         {"out", store::Dtype::kF32, {1, 4}, bytes_of(out)}})
          .ok());
  EXPECT_FALSE(result().pass);
  EXPECT_THAT(result().note, HasSubstr("in_idx"));
}

TEST_P(BrokenGolden, ADirectoryWithoutFilesIsAnError) {
  EXPECT_FALSE(run_golden(dir_, backend()).ok());
  EXPECT_FALSE(run_golden(dir_ / "nothing", backend()).ok());
}

SLUICE_ON_EVERY_BACKEND(BrokenGolden);

}  // namespace
}  // namespace sluice::backend
