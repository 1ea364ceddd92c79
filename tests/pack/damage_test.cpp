// Damaged and mixed-up stores: found when opened, when read, and by verify (faults 14, 56).
#include <gtest/gtest.h>

#include "pack/verify.h"
#include "pack_folder.h"
#include "store/dense_table.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

using test::fs::path;

/// Opens a store and reads everything in it; the first error, or an empty text.
std::string read_all(const path& folder) {
  const auto opened = store::open_store(folder);
  if (!opened.ok()) return opened.error().message;
  const store::WeightSource& source = **opened;
  for (const auto& info : store::dense_tensors(source.config(), source.has_mtp())) {
    if (auto read = source.read_dense(info.name); !read.ok()) return read.error().message;
  }
  const std::int64_t layers = source.config().layer_count() + (source.has_mtp() ? 1 : 0);
  for (std::size_t tier = 0; tier < source.record_layouts().size(); ++tier) {
    std::vector<std::byte> record(static_cast<std::size_t>(source.record_layouts()[tier].bytes()));
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      for (std::int64_t expert = 0; expert < source.config().experts; ++expert) {
        if (auto read = source.read_record(tier, layer, expert, record); !read.ok())
          return read.error().message;
      }
    }
  }
  for (const std::int64_t layer : source.config().ple->layers) {
    const auto layout = source.ngram_layout(layer);
    std::vector<std::byte> rows(static_cast<std::size_t>(layout->rows * layout->row_bytes()));
    if (auto read = source.read_ngram_range(layer, 0, rows); !read.ok()) return read.error().message;
  }
  return {};
}

/// What verify says: an error, the first damage, or nothing.
std::string verified(const path& folder) {
  const auto report = pack::verify_store(folder, false, 1);
  if (!report.ok()) return report.error().message;
  return report->damaged == 0 ? "" : report->details.front();
}

void flip_bit(const path& file, std::uintmax_t at) {
  std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekg(static_cast<std::streamoff>(at));
  const int byte = stream.get();
  stream.seekp(static_cast<std::streamoff>(at));
  stream.put(static_cast<char>(byte ^ 0x10));
}

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    test::write_source(folder_ / "source");
    ASSERT_TRUE(test::pack_folder(folder_ / "source", store_).ok());
    ASSERT_EQ(read_all(store_), "");
    ASSERT_EQ(verified(store_), "");
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, content] : test::contents(store_)) names.push_back(name);
    return names;
  }
  test::TempFolder folder_;
  const path store_ = folder_ / "store";
};

TEST_F(Damage, OneFlippedBitAnywhereIsFound) {
  for (const std::string& name : names()) {
    const auto size = std::filesystem::file_size(store_ / name);
    for (const auto at : {std::uintmax_t{0}, size / 3, size / 2, size - 1}) {
      flip_bit(store_ / name, at);
      const std::string by_verify = verified(store_);
      EXPECT_NE(by_verify.find(name), std::string::npos) << name << " at " << at << ": " << by_verify;
      // Padding of dense.bin is read by nobody; everything else is checked by those who read it.
      const std::string by_reading = read_all(store_);
      if (name != "dense.bin") {
        EXPECT_NE(by_reading.find(name), std::string::npos) << name << " at " << at << ": " << by_reading;
      }
      flip_bit(store_ / name, at);
    }
  }
  EXPECT_EQ(read_all(store_), "");
}

TEST_F(Damage, EveryTensorOfDenseBinIsChecked) {
  // Flips walk through the file with a step below the smallest tensor.
  const auto size = std::filesystem::file_size(store_ / "dense.bin");
  std::size_t unread = 0;
  for (std::uintmax_t at = 0; at < size; at += size / 97) {
    flip_bit(store_ / "dense.bin", at);
    EXPECT_NE(verified(store_), "") << at;
    if (read_all(store_).empty()) ++unread;
    flip_bit(store_ / "dense.bin", at);
  }
  EXPECT_LE(unread, 3U);  // only padding
}

TEST_F(Damage, AFileCutOrGoneIsRefusedWithItsName) {
  for (const std::string& name : names()) {
    const auto content = test::contents(store_)[name];
    for (const std::size_t keep : {content.size() - 1, content.size() / 2, std::size_t{0}}) {
      std::ofstream(store_ / name, std::ios::binary | std::ios::trunc)
          .write(content.data(), static_cast<std::streamsize>(keep));
      EXPECT_NE(read_all(store_).find(name), std::string::npos) << name << " cut to " << keep;
    }
    std::filesystem::remove(store_ / name);
    EXPECT_NE(read_all(store_).find(name), std::string::npos) << name << " gone";
    std::ofstream(store_ / name, std::ios::binary) << content;
  }
  EXPECT_EQ(read_all(store_), "");
}

TEST_F(Damage, FilesOfAnotherModelOfTheSameShapeAreRefused) {
  test::write_source(folder_ / "other", test::ModelForm::kReleased, 2);
  const path other = folder_ / "other.store";
  ASSERT_TRUE(test::pack_folder(folder_ / "other", other).ok());
  for (const std::string& name : names()) {
    const auto ours = test::contents(store_)[name];
    const auto theirs = test::contents(other)[name];
    if (ours == theirs) continue;  // configs
    std::ofstream(store_ / name, std::ios::binary | std::ios::trunc) << theirs;
    EXPECT_NE(read_all(store_), "") << name;
    EXPECT_NE(verified(store_), "") << name;
    std::ofstream(store_ / name, std::ios::binary | std::ios::trunc) << ours;
  }
  // Records with their own list of checksums, too.
  for (const char* name : {"experts.q4.bin", "experts.q4.sums"}) {
    std::filesystem::copy_file(other / name, store_ / name,
                               std::filesystem::copy_options::overwrite_existing);
  }
  EXPECT_NE(read_all(store_).find("experts.q4.sums"), std::string::npos);
}

TEST_F(Damage, TheTableOfAnotherModelIsFoundWhenOpened) {
  test::write_source(folder_ / "other", test::ModelForm::kReleased, 2);
  ASSERT_TRUE(test::pack_folder(folder_ / "other", folder_ / "other.store").ok());
  std::filesystem::copy_file(folder_ / "other.store" / "ngram.bin", store_ / "ngram.bin",
                             std::filesystem::copy_options::overwrite_existing);
  const auto opened = store::open_store(store_);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message.find("not the table of this model"), std::string::npos);
}

TEST_F(Damage, RecordsInEachOthersPlacesAreFound) {
  const path records = store_ / "experts.q4.bin";
  std::string content = test::contents(store_)["experts.q4.bin"];
  const std::size_t slot = 16384;
  ASSERT_EQ(content.size() % slot, 0U);
  std::swap_ranges(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(slot),
                   content.begin() + static_cast<std::ptrdiff_t>(slot));
  std::ofstream(records, std::ios::binary | std::ios::trunc) << content;
  EXPECT_NE(read_all(store_).find("expert 0 of layer 0"), std::string::npos);
}

TEST_F(Damage, VerifyCountsEveryDamagedPiece) {
  const auto size = std::filesystem::file_size(store_ / "experts.q4.bin");
  flip_bit(store_ / "experts.q4.bin", 100);
  flip_bit(store_ / "experts.q4.bin", size - 1);
  flip_bit(store_ / "experts.q2.bin", 5);
  const auto report = pack::verify_store(store_, false, 2);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->damaged, 3U);
  EXPECT_EQ(report->details.size(), 3U);
  // A quick look does not read records.
  EXPECT_EQ(pack::verify_store(store_, true, 2)->damaged, 0U);
}

}  // namespace
}  // namespace sluice
