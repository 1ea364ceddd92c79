#include "text/utf8.h"

#include <gtest/gtest.h>

#include "text/printable.h"

#include "text/utf8_stream.h"

namespace sluice::text {
namespace {

std::string stream_in_pieces(std::string_view bytes, std::size_t size) {
  Utf8Stream stream;
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += size) out += stream.push(bytes.substr(i, size));
  stream.finish();
  return out;
}

TEST(Utf8, ReplacesMaximalSubpartsAsPythonDoes) {
  // Each right side is bytes.decode("utf-8", "replace") of the left.
  const std::pair<std::string, std::string> cases[] = {
      {"abc", "abc"},
      {"\xff", "\uFFFD"},
      {"\xf0\x9f\x92", "\uFFFD"},
      {"\xf0\x9f\x92x", "\uFFFDx"},
      {"\xf0\x9f\xff", "\uFFFD\uFFFD"},
      {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xc0\xaf", "\uFFFD\uFFFD"},
      {"\xe0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xe2\x82\xe2\x82\xac", "\uFFFD\u20AC"},
      {"\x80", "\uFFFD"},
      {"a\xc3", "a\uFFFD"},
  };
  for (const auto& [bytes, text] : cases) EXPECT_EQ(replace_invalid_utf8(bytes), text);
}

TEST(Utf8, ValidityMatchesWhatReplacementLeavesAlone) {
  std::string bytes(3, '\0');
  for (unsigned i = 0; i < 1U << 16; ++i) {
    bytes[0] = static_cast<char>(static_cast<unsigned char>(i >> 8));
    bytes[1] = static_cast<char>(static_cast<unsigned char>(i & 0xFFU));
    bytes[2] = static_cast<char>(static_cast<unsigned char>(0x80U | (i & 0x3FU)));
    ASSERT_EQ(is_valid_utf8(bytes), replace_invalid_utf8(bytes) == bytes) << i;
  }
}

TEST(Utf8, AppendingAndSteppingAreInverse) {
  for (char32_t code = 0; code <= 0x10FFFF; code += code < 0x11000 ? 1 : 97) {
    std::string bytes;
    append_utf8(bytes, code);
    const Utf8Step step = utf8_step(bytes);
    ASSERT_EQ(step.status, Utf8Status::kOk);
    ASSERT_EQ(step.size, bytes.size());
    const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    ASSERT_EQ(step.code, surrogate ? char32_t{0xFFFD} : code);
  }
}

TEST(Utf8Stream, HoldsAnEmojiUntilItsLastByte) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xf0"), "a");
  EXPECT_EQ(stream.push("\x9f"), "");
  EXPECT_EQ(stream.push("\x91"), "");
  EXPECT_EQ(stream.pending().size(), 3U);
  EXPECT_EQ(stream.push("\x8d!"), "\xf0\x9f\x91\x8d!");
  EXPECT_FALSE(stream.finish());
}

TEST(Utf8Stream, DropsACutTailAtTheEnd) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("ok \xf0\x9f\x91"), "ok ");
  EXPECT_TRUE(stream.finish());
  EXPECT_EQ(stream.push("next"), "next");
}

TEST(Utf8Stream, ReplacesInvalidBytesOnceTheyAreKnown) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xf0\x9f"), "");
  EXPECT_EQ(stream.push("x"), "\uFFFDx");
  EXPECT_EQ(stream.push("\xff\xfe"), "\uFFFD\uFFFD");
}

TEST(Utf8Stream, EverySplitGivesTheSameText) {
  const std::string bytes = "a\xf0\x9f\x91\x8d\xff\xe2\x82\xac\xed\xa0\x80 z\xc3\xa9\xf0\x9f";
  const std::string whole = "a\xf0\x9f\x91\x8d\uFFFD\u20AC\uFFFD\uFFFD\uFFFD z\u00E9";
  for (std::size_t size = 1; size <= bytes.size(); ++size) EXPECT_EQ(stream_in_pieces(bytes, size), whole);
  for (std::size_t cut = 0; cut <= bytes.size(); ++cut) {
    Utf8Stream stream;
    std::string out = stream.push(std::string_view(bytes).substr(0, cut));
    out += stream.push(std::string_view(bytes).substr(cut));
    EXPECT_EQ(out, whole) << cut;
  }
}

TEST(Printable, WhatSteersATerminalDoesNotPass) {
  EXPECT_EQ(printable("caf\u00e9 \u00a0\u732b"), "caf\u00e9 \u00a0\u732b");
  EXPECT_EQ(printable("a\x1b[31mb\x7f\r\nc"), "a [31mb   c");
  EXPECT_EQ(printable("a\u009b31mb\u0080"), "a 31mb ");
  EXPECT_EQ(printable("a\x9b\xc2"), "a\uFFFD\uFFFD");
}

}  // namespace
}  // namespace sluice::text
