// What a run tells of its experts: counters, their file, the table.
#include "experts/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "experts/statistics_report.h"
#include "support/temp_folder.h"

namespace sluice::experts {
namespace {

using testing::HasSubstr;

Statistics make(std::int64_t layers = 2, std::int64_t experts = 4) {
  auto made = Statistics::create({layers, experts, 1000, 5, 5120, "threads"});
  EXPECT_TRUE(made.ok());
  return std::move(made).value();
}

/// A little of everything.
Statistics sample() {
  Statistics s = make();
  s.enable_timeline(100);
  s.begin_step(20, Use::kPrefill);
  for (int expert = 0; expert < 4; ++expert) s.miss(0, expert, 1000);
  s.spent(Part::kAttention, 0, 0.001, 0.002);
  s.end_step();
  s.begin_step(1, Use::kDecode);
  s.hit(0, 1);
  s.late(0, 2);
  s.miss(1, 3, 1000);
  s.read_ahead(1, 2000);
  s.predicted(1, 3);
  s.predicted_useful(1, 1);
  s.predicted_late(1, 1);
  s.predicted_wasted(1, 1);
  s.read(1, 3, 1000, 0.001, 0.003);
  s.spent(Part::kWait, 1, 0.002, 0.003);
  s.end_step();
  s.set_retries(7);
  return s;
}

TEST(Statistics, CountsGoToTheirPhaseAndAddUp) {
  const Statistics s = sample();
  EXPECT_EQ(s.prefill().tokens, 20U);
  EXPECT_EQ(s.decode().tokens, 1U);
  EXPECT_EQ(s.prefill().layers[0].misses, 4U);
  EXPECT_EQ(s.decode().layers[0].hits, 1U);
  EXPECT_EQ(s.layer(0).wanted(), 6U);
  EXPECT_EQ(s.totals().misses, 5U);
  EXPECT_EQ(s.totals().bytes, 7000U);
  EXPECT_NEAR(s.decode().layers[1].wait_seconds, 0.001, 1e-12);
  EXPECT_EQ(s.hits(0, 2), 1U);
  EXPECT_EQ(s.misses(1, 3), 1U);
}

TEST(Statistics, TheRestOfAStepIsOther) {
  const Statistics s = sample();
  const auto& parts = s.decode().parts;
  double sum = 0;
  for (const double part : parts) sum += part;
  EXPECT_GE(sum, s.decode().seconds - 1e-9);
  EXPECT_GE(parts[static_cast<std::size_t>(Part::kOther)], 0);
}

TEST(Statistics, AStepThatFailsDoesNotCountItsRows) {
  Statistics s = make();
  s.begin_step(5, Use::kPrefill);
  s.miss(0, 0, 10);
  s.begin_step(1, Use::kDecode);
  s.end_step();
  s.end_step();
  EXPECT_EQ(s.prefill().tokens, 0U);
  EXPECT_EQ(s.prefill().layers[0].misses, 1U);
  EXPECT_EQ(s.decode().steps, 1U);
}

TEST(Statistics, TheTimeLineKeepsTheLastBars) {
  Statistics s = make();
  s.spent(Part::kHead, -1, 0, 1);
  EXPECT_TRUE(s.timeline().empty());
  s.enable_timeline(3);
  for (int i = 0; i < 8; ++i) s.spent(Part::kHead, -1, i, i + 1);
  const auto events = s.timeline();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events.front().begin, 5);
  EXPECT_EQ(events.back().begin, 7);
}

TEST(Statistics, ATimerWithoutStatisticsDoesNothingAndWithThemAddsItsPart) {
  { const PartTimer timer(nullptr, Part::kHead); }
  Statistics s = make();
  { const PartTimer timer(&s, Part::kWait, 1); }
  EXPECT_GE(s.decode().parts[static_cast<std::size_t>(Part::kWait)], 0);
  EXPECT_EQ(s.decode().parts[static_cast<std::size_t>(Part::kWait)], s.decode().layers[1].wait_seconds);
}

TEST(Statistics, ShapesOutsideTheBoundsAreRefused) {
  for (const auto& [layers, experts] : std::initializer_list<std::pair<std::int64_t, std::int64_t>>{
           {0, 4}, {4, 0}, {-1, 4}, {1025, 1}, {1, 4097}, {1024, 4096}}) {
    EXPECT_FALSE(Statistics::create({layers, experts, 0, 0, 0, ""}).ok()) << layers << " " << experts;
  }
}

TEST(StatisticsFile, ADevicesCountsComeBackToo) {
  Statistics s = std::move(Statistics::create({2, 4, 1000, 8, 8000, "threads", 3, 3000})).value();
  s.set_device({5, 6, 7, 13000});
  const auto back = Statistics::from_json(s.to_json(), "file");
  ASSERT_TRUE(back.ok()) << back.error().message;
  EXPECT_EQ(back->to_json(), s.to_json());
  EXPECT_EQ(back->shape().device_slots, 3U);
  EXPECT_EQ(back->device().copied, 7U);
  Json broken = s.to_json();
  broken["device"]["copied"] = -1;
  EXPECT_FALSE(Statistics::from_json(broken, "file").ok());
  // Files from before there was any have none.
  broken.erase("device");
  EXPECT_TRUE(Statistics::from_json(broken, "file").ok());
}

TEST(StatisticsFile, ComesBackAsItWas) {
  for (const bool changed : {false, true}) {
    Statistics s = sample();
    if (changed) {
      s.set_miss_experts(2);
      s.set_cut_weak(0.05);
      s.dropped(0);
      s.low_tier(1);
    }
    const Json json = s.to_json();
    const auto text = dump_json(json);
    const auto again = Statistics::from_json(parse_json(text, "f").value(), "f");
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(dump_json(again->to_json()), text);
    EXPECT_EQ(again->changes_results(), changed);
    EXPECT_EQ(statistics_report(*again), statistics_report(s));
  }
}

TEST(StatisticsFile, SaysWhichFieldIsWrong) {
  const Json good = sample().to_json();
  const auto refused = [&](const char* pointer, const Json& value, const char* part) {
    Json bad = good;
    bad[Json::json_pointer(pointer)] = value;
    const auto read = Statistics::from_json(bad, "f");
    ASSERT_FALSE(read.ok()) << pointer;
    EXPECT_THAT(read.error().message, HasSubstr(part)) << pointer;
    EXPECT_LT(read.error().message.size(), 200U);
  };
  refused("/format", "sluice-stats 2", "f.format");
  refused("/layers", 3, "f.decode.per_layer: an array of 2 found, an array of 3 needed");
  refused("/layers", 1e9, "f.layers");
  refused("/layers", -1, "f.layers: -1 found");
  refused("/experts", 0, "f.experts: 0 found");
  refused("/reader", "ssh", "f.reader");
  refused("/decode/seconds", -1, "f.decode.seconds: -1 found");
  refused("/decode/seconds", NAN, "f.decode.seconds");
  refused("/decode/parts/head", "long", "f.decode.parts.head");
  refused("/prefill/per_layer/1/hits", 1e30, "f.prefill.per_layer[1].hits");
  refused("/prefill/per_layer/1/lookahead", 3, "f.prefill.per_layer[1].lookahead.predicted: nothing found");
  refused("/per_expert/misses/1/2", -3, "f.per_expert.misses[1][2]: -3 found");
  refused("/per_expert/hits", Json::array(), "f.per_expert.hits: an array of 0 found");
  refused("/changed_results/miss_experts", 64, "f.changed_results.miss_experts");
  refused("/timeline/0/kind", "sleep", "f.timeline[0].kind");
  refused("/timeline/0/layer", 2, "f.timeline[0].layer: 2 found");
  refused("/timeline/0/layer", 18446744073709551615U, "f.timeline[0].layer");
  refused("/timeline/0/end", 0, "f.timeline[0].end");
  refused("/timeline", Json(std::vector<int>(Statistics::kMostEvents + 1)), "f.timeline");
}

// Whatever is put in the place of any value: an error or a file that can be reported on, never a crash.
void mutate(const Json& root, const Json::json_pointer& at, int& refused, int& taken) {
  for (const Json& value : {Json(), Json(-1), Json(1e300), Json(18446744073709551615U), Json("x"),
                            Json::array(), Json::object(), Json(true)}) {
    Json bad = root;
    bad[at] = value;
    const auto read = Statistics::from_json(bad, "f");
    if (!read.ok()) {
      ++refused;
    } else {
      ++taken;
      EXPECT_FALSE(statistics_report(*read).empty());
    }
  }
  const Json& here = root[at];
  if (here.is_object()) {
    for (const auto& [key, value] : here.items()) mutate(root, at / key, refused, taken);
  } else if (here.is_array()) {
    for (std::size_t i = 0; i < here.size(); ++i) mutate(root, at / i, refused, taken);
  }
}

TEST(StatisticsFile, AnyValueInAnyPlaceIsSafe) {
  int refused = 0, taken = 0;
  mutate(sample().to_json(), Json::json_pointer(""), refused, taken);
  EXPECT_GT(refused, 500);
  EXPECT_GT(taken, 100);  // of what is worked out again when read, and empty time lines
}

TEST(StatisticsFile, AStoredFileIsRead) {
  const auto read = read_statistics(std::string(SLUICE_TEST_DATA) + "/experts/statistics.json");
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read->shape().experts, 2);
  EXPECT_EQ(read->timeline().size(), 4U);
}

TEST(StatisticsFile, TextThatIsNoStatisticsIsRefusedWithTheFilesName) {
  const test::TempFolder folder;
  for (const char* text : {"", "{", "[]", "null", "{\"format\":\"other\"}", "\xff\xfe"}) {
    const auto read = read_statistics(folder.write("s.json", text));
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_THAT(read.error().message, HasSubstr("s.json")) << text;
  }
  EXPECT_FALSE(read_statistics(folder / "none").ok());
}

TEST(StatisticsReport, TellsRatesPartsAndLayers) {
  const std::string report = statistics_report(sample());
  EXPECT_THAT(report, HasSubstr("2 layers of 4, records of 1000 B"));
  EXPECT_THAT(report,
              HasSubstr("5 records, 5.00 KiB: 62.5% of all, read through threads; 7 reads tried again"));
  EXPECT_THAT(report, HasSubstr("33.3% of 3 wanted were there, 1 on their way, 1 missing"));
  EXPECT_THAT(report, HasSubstr("3 named; of 3 reads 33.3% useful, 33.3% late, 33.3% wasted"));
  EXPECT_THAT(report, HasSubstr("attention"));
  EXPECT_THAT(report, HasSubstr("1 (33.3%), 2 (33.3%), 0 (16.7%), 3 (16.7%)"));
  EXPECT_EQ(report.find("CHANGED"), std::string::npos);
}

TEST(StatisticsReport, BeginsWithWhatChangedTheResults) {
  Statistics s = sample();
  s.set_miss_experts(2);
  s.low_tier(1);
  s.set_cut_weak(0.05);
  const std::string report = statistics_report(s);
  EXPECT_EQ(report.rfind("RESULTS ARE CHANGED by --miss-experts 2: 1 missing", 0), 0U) << report;
  EXPECT_THAT(report, HasSubstr("RESULTS ARE CHANGED by --cut-weak 0.05"));
}

TEST(StatisticsReport, OfNothingIsShort) {
  const std::string report = statistics_report(Statistics::create({48, 512, 0, 0, 0, ""}).value());
  EXPECT_THAT(report, HasSubstr("no tokens"));
  EXPECT_THAT(report, HasSubstr("every record is kept in memory"));
  EXPECT_EQ(report.find("nan"), std::string::npos) << report;
}

}  // namespace
}  // namespace sluice::experts
