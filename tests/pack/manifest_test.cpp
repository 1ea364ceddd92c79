// Manifests that contradict themselves, the model or the files.
#include "store/manifest.h"

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "pack_folder.h"
#include "support/temp_folder.h"

namespace sluice::store {
namespace {

/// The text with a right checksum around changed content.
std::string sealed(const Json& root) {
  std::string body = dump_json(root, 1).substr(2) + "\n";
  return "{\"xxh3\": \"" + checksum_text(checksum(std::as_bytes(std::span(body)))) + "\",\n" + body;
}

class ManifestTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    test::TempFolder folder;
    test::write_source(folder / "source");
    ASSERT_TRUE(test::pack_folder(folder / "source", folder / "store").ok());
    text_ = test::contents(folder / "store")["manifest.json"];
    root_ = Json::parse(text_);
    root_.erase("xxh3");
  }
  /// The error of the manifest after `change`.
  template <class Change>
  static std::string error_of(const Change& change) {
    Json root = root_;
    change(root);
    const auto parsed = parse_manifest(sealed(root), "manifest.json");
    return parsed.ok() ? "" : parsed.error().message;
  }
  static std::string text_;
  static Json root_;
};
std::string ManifestTest::text_;
Json ManifestTest::root_;

TEST_F(ManifestTest, IsWrittenAsItIsRead) {
  const auto parsed = parse_manifest(text_, "manifest.json");
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_EQ(manifest_text(*parsed), text_);
  EXPECT_EQ(error_of([](Json&) {}), "");
}

TEST_F(ManifestTest, EveryChangedByteIsFound) {
  for (std::size_t at = 0; at < text_.size(); at += 211) {
    std::string changed = text_;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_FALSE(parse_manifest(changed, "manifest.json").ok()) << at;
  }
}

TEST_F(ManifestTest, OtherFilesAreNoManifests) {
  for (const char* text :
       {"", "{}", "{\"xxh3\": \"0123456789abcdef\",\n", "null", "{\"xxh3\": \"\",\n}", "\n"}) {
    EXPECT_FALSE(parse_manifest(text, "manifest.json").ok()) << text;
  }
}

TEST_F(ManifestTest, AnotherVersionSaysSo) {
  EXPECT_NE(error_of([](Json& m) { m["version"] = 2; }).find("version 2 found, 1 needed"), std::string::npos);
}

TEST_F(ManifestTest, ContradictionsAreErrors) {
  const std::vector<std::function<void(Json&)>> changes = {
      [](Json& m) { m["format"] = "other"; },
      [](Json& m) { m.erase("config"); },
      [](Json& m) { m["config"] = Json::object(); },
      [](Json& m) { m["config"]["text_config"]["num_experts"] = 17; },
      [](Json& m) { m["config"]["text_config"]["hidden_size"] = 128; },
      [](Json& m) { m["dense"]["tensors"].erase(3); },
      [](Json& m) { m["dense"]["tensors"][0]["name"] = "lm_head"; },
      [](Json& m) {
        m["dense"]["tensors"][0]["shape"] = {1, 2};
      },
      [](Json& m) {
        m["dense"]["tensors"][0]["shape"] = {-1, 64};
      },
      [](Json& m) { m["dense"]["tensors"][0]["format"] = "q5"; },
      [](Json& m) { m["dense"]["tensors"][0]["format"] = "q2"; },
      [](Json& m) { m["dense"]["tensors"][0]["group"] = 0; },
      [](Json& m) { m["dense"]["tensors"][0]["parts"][0]["offset"] = 1; },
      [](Json& m) { m["dense"]["tensors"][0]["parts"][0]["offset"] = std::uint64_t{1} << 63; },
      [](Json& m) { m["dense"]["tensors"][0]["parts"][0]["bytes"] = 0; },
      [](Json& m) { m["dense"]["tensors"][1]["parts"][0]["offset"] = 0; },  // over the first tensor
      [](Json& m) { m["dense"]["bytes"] = 64; },
      [](Json& m) { m["dense"]["tensors"][0]["parts"][0]["xxh3"] = "zz"; },
      [](Json& m) { m["experts"]["layers"] = 4; },
      [](Json& m) { m["experts"]["tiers"] = Json::array(); },
      [](Json& m) { m["experts"]["tiers"][0]["record_bytes"] = 1; },
      [](Json& m) { m["experts"]["tiers"][0]["slot_bytes"] = 1; },
      [](Json& m) { m["experts"]["tiers"][1]["format"] = "q4"; },
      [](Json& m) { m["ngram"]["tables"][0]["rows"] = std::uint64_t{1} << 59; },
      [](Json& m) { m["ngram"]["tables"][0]["rows"] = 1; },
      [](Json& m) { m["ngram"]["tables"][0]["first_page"] = 1; },
      [](Json& m) { m["ngram"]["tables"][0]["layer"] = 0; },
      [](Json& m) { m["ngram"]["tables"][0]["columns"] = 7; },
      [](Json& m) { m["ngram"]["tables"][0]["offsets"][1] = 0; },
      [](Json& m) { m["ngram"]["bytes"] = 4096; },
      [](Json& m) { m["ngram"]["blocks"] = Json::array(); },
      [](Json& m) { m["ngram"].erase("sample"); },
      [](Json& m) { m["files"][0]["name"] = "../config.json"; },
      [](Json& m) { m["files"][0]["name"] = ""; },
      [](Json& m) { m["files"][0]["bytes"] = -1; },
      [](Json& m) { m["files"] = 3; },
      [](Json& m) { m["source"] = nullptr; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) EXPECT_NE(error_of(changes[i]), "") << "change " << i;
}

TEST_F(ManifestTest, NoTypeOfAnyFieldCanCrashTheReader) {
  const std::vector<Json> values = {nullptr,
                                    true,
                                    -1,
                                    1e300,
                                    "",
                                    "text",
                                    Json::array(),
                                    Json::object(),
                                    {1, "a"},
                                    std::uint64_t{18446744073709551615ULL}};
  std::function<void(Json&, Json&)> walk = [&](Json& root, Json& node) {
    if (!node.is_structured()) return;
    std::size_t seen = 0;
    for (auto& child : node) {
      if (node.is_array() && ++seen > 2) break;
      const Json before = child;
      for (const Json& value : values) {
        child = value;
        (void)parse_manifest(sealed(root), "manifest.json");
      }
      child = before;
      walk(root, child);
    }
  };
  Json root = root_;
  root["dense"]["tensors"].erase(root["dense"]["tensors"].begin() + 3, root["dense"]["tensors"].end());
  walk(root, root);
}

}  // namespace
}  // namespace sluice::store
