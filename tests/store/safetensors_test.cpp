#include "store/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "support/edit_model.h"
#include "support/temp_folder.h"

namespace sluice::store {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// A file's bytes: length, header, data.
std::string file_bytes(std::string_view header, std::size_t data) {
  std::string bytes(8, '\0');
  const std::uint64_t n = header.size();
  std::memcpy(bytes.data(), &n, sizeof n);
  return bytes + std::string(header) + std::string(data, 'x');
}

void expect_error(const std::string& bytes, ErrorCode code, std::string_view part) {
  const test::TempFolder folder;
  const auto path = folder.write("m.safetensors", bytes);
  const auto file = SafetensorsFile::open(path);
  ASSERT_FALSE(file.ok()) << part;
  EXPECT_EQ(file.error().code, code) << file.error().message;
  EXPECT_THAT(file.error().message, HasSubstr(path.string()));
  EXPECT_THAT(file.error().message, HasSubstr(std::string(part)));
}

void expect_corrupt(const std::string& bytes, std::string_view part) {
  expect_error(bytes, ErrorCode::kCorrupt, part);
}

constexpr std::string_view kGood =
    R"({"__metadata__":{"k":"v"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
    R"("b":{"dtype":"I64","shape":[],"data_offsets":[12,20]}})";

TEST(Safetensors, ReadsHeaderAndTensors) {
  const test::TempFolder folder;
  auto bytes = file_bytes(kGood, 20);
  bytes[bytes.size() - 8] = 'y';
  const auto file = SafetensorsFile::open(folder.write("m.safetensors", bytes));
  ASSERT_TRUE(file.ok()) << file.error().message;
  const SafetensorsFile& f = **file;
  EXPECT_EQ(f.header().tensors.size(), 2U);
  EXPECT_EQ(f.header().metadata.at("k"), "v");
  const TensorInfo* a = f.find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, Dtype::kBf16);
  EXPECT_THAT(a->shape, ElementsAre(2, 3));
  EXPECT_EQ(a->elements(), 6);
  EXPECT_EQ(a->offset, 8 + kGood.size());
  EXPECT_EQ(f.find("c"), nullptr);
  const auto b = f.read(*f.find("b"));
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->front(), std::byte{'y'});
  EXPECT_EQ(b->size(), 8U);

  std::array<std::byte, 4> part{};
  EXPECT_TRUE(f.read(*a, 8, part).ok());
  EXPECT_FALSE(f.read(*a, 9, part).ok());
  EXPECT_FALSE(f.read(*a, std::numeric_limits<std::uint64_t>::max(), part).ok());
}

TEST(Safetensors, EmptyAndScalarAndPaddedHeaders) {
  const test::TempFolder folder;
  EXPECT_TRUE(SafetensorsFile::open(folder.write("empty", file_bytes("{}", 0))).ok());
  EXPECT_TRUE(SafetensorsFile::open(folder.write("padded", file_bytes("{}      ", 0))).ok());
  // Tensors without elements share offsets with their neighbours.
  EXPECT_TRUE(SafetensorsFile::open(
                  folder.write("none", file_bytes(R"({"z":{"dtype":"F32","shape":[0,7],"data_offsets":[4,4]},
      "a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"y":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
                                                  4)))
                  .ok());
}

// faults.md 56
TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string good = file_bytes(kGood, 20);
  for (std::size_t n = 0; n < good.size(); ++n) {
    const test::TempFolder folder;
    const auto file =
        SafetensorsFile::open(folder.write("m.safetensors", std::string_view(good).substr(0, n)));
    ASSERT_FALSE(file.ok()) << n;
    EXPECT_EQ(file.error().code, ErrorCode::kCorrupt) << n;
  }
  expect_corrupt(good.substr(0, good.size() - 1), "the file has 19 bytes of data");
  expect_corrupt("", "0 bytes found, at least 8 needed");
  expect_corrupt(good.substr(0, 40), "truncated in the header");
}

TEST(Safetensors, OverlongFileIsRefused) {
  expect_corrupt(file_bytes(kGood, 21),
                 fmt::format("{} bytes found, {} needed", kGood.size() + 29, kGood.size() + 28));
}

TEST(Safetensors, HugeHeaderLengthIsRefusedUnread) {
  std::string bytes = file_bytes(kGood, 20);
  std::memset(bytes.data(), 0xff, 8);
  expect_error(bytes, ErrorCode::kLimit, "header of 18446744073709551615 bytes found");
}

TEST(Safetensors, HeaderMustBeItsJson) {
  expect_corrupt(file_bytes("", 0), "does not start with '{'");
  expect_corrupt(file_bytes("[1,2]   ", 0), "does not start with '{'");
  expect_corrupt(file_bytes(" {}", 0), "does not start with '{'");
  expect_corrupt(file_bytes("{\"a\":", 0), "not valid JSON");
  expect_corrupt(file_bytes("{} {}", 0), "not valid JSON");
  expect_corrupt(file_bytes("{\"a\xff\":1}", 0), "not valid JSON");
  expect_corrupt(file_bytes(R"({"a":1})", 0), "tensor a: a number found in the wrong place");
  expect_corrupt(file_bytes(R"({"a":{}})", 0), "tensor a: dtype, shape and data_offsets needed");
  expect_corrupt(file_bytes(R"({"a":{"dtype":"F32"}})", 0), "tensor a");
  expect_corrupt(file_bytes(R"({"a":{"dtype":3}})", 0), "tensor a");
  expect_corrupt(file_bytes(R"({"a":{"shape":[[1]]}})", 0), "a list in a list");
  expect_corrupt(file_bytes(R"({"a":{"data_offsets":[0]}})", 0), "1 data_offsets found, 2 needed");
  expect_corrupt(file_bytes(R"({"a":{"data_offsets":[0,1,2]}})", 0), "more than two data_offsets");
  expect_corrupt(file_bytes(R"({"a":{"shape":[1.5]}})", 0), "fractional");
  expect_corrupt(file_bytes(R"({"a":{"shape":[-1]}})", 0), "a negative number");
  expect_corrupt(file_bytes(R"({"a":{"shape":[18446744073709551615]}})", 0), "too large");
  expect_corrupt(file_bytes(R"({"a":{"shape":[1e99]}})", 0), "fractional or huge");
  expect_corrupt(file_bytes(R"({"a":{"color":"red"}})", 0), "unknown field \"color\"");
  expect_corrupt(file_bytes(R"({"a":{"dtype":"F32","dtype":"F32"}})", 0), "dtype occurs twice");
  expect_corrupt(file_bytes(R"({"__metadata__":{"a":1}})", 0), "a number");
  expect_corrupt(file_bytes(R"({"__metadata__":{"a":"b","a":"c"}})", 0), "occurs twice");
  const std::string deep = "{\"a\":" + std::string(100000, '[');
  expect_corrupt(file_bytes(deep, 0), "tensor a");
}

std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets, std::size_t data) {
  return file_bytes(
      fmt::format(R"({{"t":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape, offsets), data);
}

TEST(Safetensors, BadTensorsAreRefused) {
  expect_error(one("F8_E5M2", "[4]", "[0,4]", 4), ErrorCode::kUnsupported,
               "tensor t: dtype \"F8_E5M2\" found");
  expect_corrupt(one("F32", "[2]", "[0,4]", 4), "tensor t: 4 bytes found, 8 needed for F32 [2]");
  expect_corrupt(one("F32", "[1]", "[4,0]", 4), "tensor t: data offsets 4 to 0");
  expect_corrupt(one("F32", "[2]", "[0,8]", 4), "tensor t: data offsets 0 to 8 found, the file has 4 bytes");
  expect_corrupt(one("F32", "[1]", "[9223372036854775803,9223372036854775807]", 4), "tensor t: data offsets");
  expect_corrupt(one("F32", "[4294967296,4294967296]", "[0,4]", 4), "more bytes than 64 bits can count");
  expect_corrupt(one("F32", "[9223372036854775807,0]", "[0,0]", 0), "more bytes than 64 bits can count");
}

TEST(Safetensors, TensorsMustTileTheData) {
  const auto two = [](std::string_view first, std::string_view second, std::size_t data) {
    return file_bytes(fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                                  R"("b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                                  first, second),
                      data);
  };
  expect_corrupt(two("[0,4]", "[2,6]", 6), "tensor b: starts at byte");
  expect_corrupt(two("[0,4]", "[0,4]", 4), "it overlaps another");
  expect_corrupt(two("[0,4]", "[12,16]", 16), "there is a gap before it");
  expect_corrupt(two("[8,12]", "[12,16]", 16), "there is a gap before it");
  // Padding to a multiple of 8 bytes is not a gap.
  const auto padded = two("[0,4]", "[8,12]", 12);
  EXPECT_TRUE(parse_safetensors_header(std::as_bytes(std::span(padded)), padded.size(), "padded").ok());
}

TEST(Safetensors, DuplicateNamesAreRefused) {
  expect_corrupt(file_bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                            R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                            2),
                 "tensor a occurs twice");
}

TEST(Safetensors, MissingFileAndFolder) {
  const test::TempFolder folder;
  const auto missing = SafetensorsFile::open(folder / "none.safetensors");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(SafetensorsFile::open(folder.path()).ok());
}

// A file cut while it is open: an error, no stale bytes and no signal.
TEST(Safetensors, FileThatShrinksUnderUsIsAnError) {
  const test::TempFolder folder;
  const auto path = folder.write("m.safetensors", file_bytes(kGood, 20));
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok());
  std::filesystem::resize_file(path, 8 + kGood.size() + 5);
  const auto read = (*file)->read(*(*file)->find("a"));
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(read.error().message, HasSubstr("shrank while open"));
}

TEST(WriteSafetensors, RoundTripWithNoLeftovers) {
  const test::TempFolder folder;
  const std::vector<std::uint16_t> values = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int64_t> scalar = {-7};
  const std::vector<TensorData> tensors = {
      {"sp\"ecial\\ \xc3\xa4", Dtype::kBf16, {2, 3}, std::as_bytes(std::span(values))},
      {"empty", Dtype::kF32, {0, 5}, {}},
      {"scalar", Dtype::kI64, {}, std::as_bytes(std::span(scalar))}};
  const auto path = folder / "m.safetensors";
  ASSERT_TRUE(write_safetensors(path, tensors, {{"format", "pt"}, {"a", "\"b\""}}).ok());
  const auto fixture = test::Fixture::load(path);
  EXPECT_EQ(fixture.ints("scalar"), scalar);
  EXPECT_THAT(fixture.shape("sp\"ecial\\ \xc3\xa4"), ElementsAre(2, 3));
  EXPECT_EQ(fixture.metadata().at("a"), "\"b\"");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  // Aligned data, and replacing what is there.
  EXPECT_EQ((*SafetensorsFile::open(path))->find("sp\"ecial\\ \xc3\xa4")->offset % 8, 0U);
  ASSERT_TRUE(write_safetensors(path, std::span(tensors).first(1)).ok());
  EXPECT_FALSE(test::Fixture::load(path).has("scalar"));
}

TEST(WriteSafetensors, LeftoversOfAKilledWriterAreNoObstacle) {
  const test::TempFolder folder;
  folder.write(fmt::format("m.{}-0.part", ::getpid()), "half");
  const std::vector<std::byte> bytes(4);
  ASSERT_TRUE(write_safetensors(folder / "m", std::array{TensorData{"a", Dtype::kU8, {4}, bytes}}).ok());
  EXPECT_TRUE(SafetensorsFile::open(folder / "m").ok());
}

TEST(WriteSafetensors, ErrorsLeaveNothingBehind) {
  const test::TempFolder folder;
  const std::vector<std::byte> bytes(4);
  const TensorData good{"a", Dtype::kU8, {4}, bytes}, wrong{"b", Dtype::kF32, {4}, bytes};
  EXPECT_EQ(write_safetensors(folder / "m", std::array{good, wrong}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_THAT(write_safetensors(folder / "m", std::array{good, good}).error().message,
              HasSubstr("a given twice"));
  EXPECT_EQ(write_safetensors(folder / "no/such/m", std::array{good}).error().code, ErrorCode::kIo);
  std::filesystem::create_directory(folder / "taken");
  EXPECT_EQ(write_safetensors(folder / "taken", std::array{good}).error().code, ErrorCode::kInvalidArgument);
  std::filesystem::remove(folder / "taken");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace sluice::store
