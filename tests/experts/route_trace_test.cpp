// Recorded routes: what is written comes back, what is damaged is refused with its line.
#include "experts/route_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "support/temp_folder.h"

namespace sluice::experts {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::string_view kHeader = "sluice-routes 1 layers 3 experts 8 top 2 record_bytes 4096\n";

Result<RouteTrace> parse(std::string_view body) {
  return parse_route_trace(std::string(kHeader) + std::string(body), "t");
}

TEST(RouteTrace, WhatIsWrittenComesBack) {
  const test::TempFolder folder;
  const auto path = folder / "routes";
  auto made = RouteWriter::create(path, {3, 8, 2, 4096});
  ASSERT_TRUE(made.ok());
  RouteWriter& writer = **made;
  using Ids = std::vector<std::uint32_t>;
  // A prefill whose layer 0 comes in two leases, in the order of arrival.
  ASSERT_TRUE(writer.layer(0, 20, Use::kPrefill, true, Ids{3, 1}, Ids{5, 20}).ok());
  ASSERT_TRUE(writer.layer(0, 20, Use::kPrefill, false, Ids{7, 2}, Ids{1, 14}).ok());
  ASSERT_TRUE(writer.layer(1, 20, Use::kPrefill, true, Ids{0, 1}, Ids{20, 20}).ok());
  ASSERT_TRUE(writer.layer(0, 1, Use::kDecode, true, Ids{5, 4}, Ids{1, 1}).ok());
  ASSERT_TRUE(writer.layer(2, 1, Use::kDecode, true, Ids{0, 4}, Ids{1, 1}).ok());
  ASSERT_TRUE(writer.layer(2, 1, Use::kDecode, true, Ids{0, 6}, Ids{1, 1}).ok());  // a step of its own
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_TRUE(writer.finish().ok());

  const auto read = read_route_trace(path);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->shape, (RouteShape{3, 8, 2, 4096}));
  ASSERT_EQ(read->steps.size(), 3U);
  EXPECT_EQ(read->tokens(Use::kPrefill), 20U);
  EXPECT_EQ(read->tokens(Use::kDecode), 2U);
  ASSERT_EQ(read->layers_of(0).size(), 2U);
  ASSERT_EQ(read->layers_of(1).size(), 2U);
  ASSERT_EQ(read->layers_of(2).size(), 1U);
  EXPECT_THAT(read->ids_of(0), ElementsAre(1, 2, 3, 7));
  EXPECT_THAT(std::vector<std::uint32_t>(read->rows.begin(), read->rows.begin() + 4),
              ElementsAre(20, 14, 5, 1));
  EXPECT_THAT(read->ids_of(2), ElementsAre(4, 5));
  EXPECT_THAT(read->ids_of(4), ElementsAre(0, 6));
}

TEST(RouteTrace, AWriterThatIsNotFinishedLeavesNothing) {
  const test::TempFolder folder;
  { ASSERT_TRUE(RouteWriter::create(folder / "routes", {3, 8, 2, 0}).ok()); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_FALSE(RouteWriter::create(folder / "no" / "routes", {3, 8, 2, 0}).ok());
  EXPECT_FALSE(RouteWriter::create(folder / "routes", {0, 8, 2, 0}).ok());
  EXPECT_FALSE(RouteWriter::create(folder / "routes", {3, 8, 9, 0}).ok());
}

TEST(RouteTrace, MemoryOfAWriterIsBounded) {
  const test::TempFolder folder;
  auto made = RouteWriter::create(folder / "routes", {1, 4096, 10, 0});
  ASSERT_TRUE(made.ok());
  std::vector<std::uint32_t> ids(4096), rows(4096, 2);
  for (std::uint32_t i = 0; i < 4096; ++i) ids[i] = i;
  for (int step = 0; step < 200; ++step) {
    ASSERT_TRUE((*made)->layer(0, 4096, Use::kPrefill, true, ids, rows).ok());
  }
  // All but a buffer is in the file already.
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_GT(entry.file_size(), 3'000'000U);
  }
  ASSERT_TRUE((*made)->finish().ok());
  EXPECT_EQ(read_route_trace(folder / "routes")->ids.size(), 200U * 4096U);
}

TEST(RouteTrace, DamageIsRefusedWithItsLine) {
  const auto refused = [](std::string_view body, const char* part) {
    const auto read = parse(body);
    ASSERT_FALSE(read.ok()) << body;
    EXPECT_THAT(read.error().message, HasSubstr(part)) << body;
    EXPECT_LT(read.error().message.size(), 200U);
  };
  refused("0 1 2\n", "line 2: line '0 1 2' found, decode or prefill before the first layer needed");
  refused("decode\n", "line 2: rows ''");
  refused("decode 0\n", "rows '0'");
  refused("decode -1\n", "rows '-1'");
  refused("decode 99999999\n", "rows '99999999'");
  refused("decode 1 2\n", "rows");
  refused("decode 1\n3 1 2\n", "line 3: layer '3' found, 0 to 2 needed");
  refused("decode 1\n99999999999999999999 1\n", "layer '99999999999999999999'");
  refused("decode 1\n1 1\n1 2\n", "line 4: layer '1' found, 2 to 2 needed");
  refused("decode 1\n1 1\n0 2\n", "layer '0'");
  refused("decode 1\n0 8\n", "expert '8' found, ids from 0 to 7 needed");
  refused("decode 1\n0 2 1\n", "expert '1' found, ids from 3 to 7");
  refused("decode 1\n0 2 2\n", "expert '2'");
  refused("decode 1\n0 1*2\n", "expert '1*2' found, 1 to 1 rows");
  refused("decode 1\n0 1*0\n", "expert '1*0'");
  refused("decode 1\n0 1*\n", "expert '1*'");
  refused("decode 1\n0 *1\n", "expert '*1'");
  refused("decode 1\n0  1\n", "expert ''");
  refused("decode 1\n0 1 2 3\n", "choices '3' found, at most 2 of each of 1 rows");
  refused("decode 1\n0 1.5\n", "expert '1.5'");
  refused("decode 1\n\n", "line 3: line ''");
  refused("repeat 1\n", "line 'repeat 1'");
  for (const char* header :
       {"", "\n", "sluice-routes 2 layers 3 experts 8 top 2 record_bytes 1\n", "sluice-routes 1 layers 3\n",
        "sluice-routes 1 layers 0 experts 8 top 2 record_bytes 1\n",
        "sluice-routes 1 layers 3 experts 8 top 9 record_bytes 1\n",
        "sluice-routes 1 layers 3 experts 99999 top 2 record_bytes 1\n",
        "sluice-routes 1 layers 1024 experts 4096 top 2 record_bytes 1\n",
        "sluice-routes 1 layers 3 experts 8 top 2 record_bytes -1\n",
        "sluice-routes 1 layers 3 experts 8 top 2 record_bytes 1 more\n"}) {
    const auto read = parse_route_trace(header, "t");
    ASSERT_FALSE(read.ok()) << header;
    EXPECT_THAT(read.error().message, HasSubstr("t: line 1: ")) << header;
  }
}

TEST(RouteTrace, CutAnywhereOrWithAnyByteChangedItIsReadOrRefused) {
  const std::string text = std::string(kHeader) + "prefill 9\n0 1*9 2*3 5*6\n2 0*9\ndecode 1\n0 3 7\n1 0 1\n";
  ASSERT_TRUE(read_route_trace(std::string(SLUICE_TEST_DATA) + "/experts/routes.txt").ok());
  ASSERT_TRUE(parse_route_trace(text, "t").ok());
  for (std::size_t i = 0; i <= text.size(); ++i) {
    (void)parse_route_trace(text.substr(0, i), "t");
    for (const char c : {'\0', '\n', ' ', '*', '-', '9', '\xff'}) {
      std::string changed = text;
      if (i < text.size()) changed[i] = c;
      const auto read = parse_route_trace(changed, "t");
      if (!read.ok()) continue;
      for (const std::uint32_t id : read->ids) EXPECT_LT(id, 8U);
      for (const auto& layer : read->layers) EXPECT_LT(layer.layer, 3U);
    }
  }
}

TEST(RouteTrace, TracesOfOneShapeAreAppended) {
  auto a = parse("decode 1\n0 1 2\n").value();
  const auto b = parse("prefill 9\n1 3*9\ndecode 1\n2 4 5\n").value();
  ASSERT_TRUE(a.append(b));
  ASSERT_EQ(a.steps.size(), 3U);
  EXPECT_EQ(a.layers_of(2)[0].layer, 2U);
  EXPECT_THAT(a.ids_of(1), ElementsAre(3));
  EXPECT_THAT(a.ids_of(2), ElementsAre(4, 5));
  RouteTrace other;
  other.shape = {3, 9, 2, 4096};
  EXPECT_FALSE(a.append(other));
}

}  // namespace
}  // namespace sluice::experts
