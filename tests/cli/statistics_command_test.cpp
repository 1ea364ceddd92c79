// sluice stats, sluice bench and --trace-routes as a user meets them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <fstream>
#include <iterator>

#include "base/json.h"
#include "experts/statistics.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

using testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

class StatisticsCommand : public testing::Test {
 protected:
  static std::string quoted(const std::string& text) {
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
    return out + "'";
  }
  static std::string content(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  Outcome sluice(const std::vector<std::string>& arguments) {
    std::string line = quoted(SLUICE_BINARY);
    for (const auto& argument : arguments) line += " " + quoted(argument);
    line += " </dev/null >" + quoted((folder_ / "out").string()) + " 2>" + quoted((folder_ / "err").string());
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content(folder_ / "out"), content(folder_ / "err")};
  }
  void fails(const std::vector<std::string>& arguments, const std::string& part) {
    const auto r = sluice(arguments);
    EXPECT_EQ(r.code, 1) << r.out << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_EQ(r.err.rfind("sluice: ", 0), 0U) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_THAT(r.err, HasSubstr(part));
  }
  std::string write_statistics() {
    auto s = experts::Statistics::create({2, 4, 1 << 20, 4, 4 << 20, "io_uring"}).value();
    s.enable_timeline();
    s.begin_step(1, experts::Use::kDecode);
    s.hit(0, 3);
    s.miss(1, 2, 1 << 20);
    s.spent(experts::Part::kAttention, 0, 0, 0.001);
    s.end_step();
    return folder_.write("run.json", dump_json(s.to_json())).string();
  }
  test::TempFolder folder_;
  const std::string demo_ = std::string(SLUICE_MODELS) + "/demo";
};

TEST_F(StatisticsCommand, StatsPrintsTheTableOfAFile) {
  const auto file = write_statistics();
  const auto r = sluice({"stats", file});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.err, "");
  EXPECT_EQ(r.out.rfind("experts           2 layers of 4, records of 1.00 MiB\n"
                        "pool              4 records, 4.00 MiB: 50.0% of all, read through io_uring\n"
                        "decode            1 tokens in 1 steps, ",
                        0),
            0U)
      << r.out;
  EXPECT_THAT(r.out,
              HasSubstr("50.0% of 2 wanted were there, 0 on their way, 1 missing; a token 1.049 MB read"));
  EXPECT_THAT(r.out, HasSubstr("    0   100.0%     0.0%         0     0.000    0.000  3 (100.0%)\n"));
}

TEST_F(StatisticsCommand, StatsAsJsonIsTheFile) {
  const auto file = write_statistics();
  const auto r = sluice({"stats", file, "--json"});
  EXPECT_EQ(parse_json(r.out, "out").value(), parse_json(content(file), "file").value());
}

TEST_F(StatisticsCommand, StatsDraws) {
  const auto svg = (folder_ / "run.svg").string();
  const auto r = sluice({"stats", write_statistics(), "--plot", svg});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(content(svg), HasSubstr("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(content(svg), HasSubstr("layer 0 attention"));
  fails({"stats", write_statistics(), "--plot", (folder_ / "no" / "x.svg").string()}, "x.svg");
}

TEST_F(StatisticsCommand, StatsRefusesWhatIsNoStatistics) {
  fails({"stats", (folder_ / "none").string()}, "none");
  fails({"stats", folder_.path().string()}, "not a regular file");
  fails({"stats", folder_.write("x", "{}").string()}, "x.format: nothing found");
  fails({"stats", folder_.write("x", "[").string()}, "not valid JSON");
  fails({"stats", folder_.write("x", std::string(200, '[')).string()}, "nested deeper");
}

TEST_F(StatisticsCommand, RoutesOfARunCanBeReplayed) {
  const auto routes = (folder_ / "routes").string();
  const auto run =
      sluice({"run", demo_, "Define glacier.", "--temperature", "0", "--no-think", "--trace-routes", routes});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "Glacier (noun): a slowly moving mass of ice.\n");
  EXPECT_EQ(content(routes).rfind("sluice-routes 1 layers 9 experts 32 top 4 record_bytes ", 0), 0U);

  const auto r = sluice({"bench", "--policy-trace", routes, "--pool-share", "0.5,1"});
  EXPECT_EQ(r.code, 0) << r.err;
  for (const char* part : {"9 layers of 32 experts, top 4", "heat: half life 64 steps", "LRU", "CLOCK",
                           "LFU aged", "optimum", "144         288"}) {
    EXPECT_THAT(r.out, HasSubstr(part));
  }
  const auto one = parse_json(sluice({"bench", "--policy-trace", routes, "--json"}).out, "out").value();
  const auto two =
      parse_json(sluice({"bench", "--policy-trace", routes, routes, "--json"}).out, "out").value();
  EXPECT_EQ(one["pools"].size(), 3U);
  EXPECT_EQ(one["trace"]["decode_tokens"].get<int>() * 2, two["trace"]["decode_tokens"].get<int>());
  for (const auto& pool : one["pools"]) {
    const auto& policies = pool["policies"];
    ASSERT_EQ(policies.size(), 6U);
    for (const auto& policy : policies) {
      EXPECT_LE(policy["hit_rate"].get<double>(), policies[5]["hit_rate"].get<double>());
    }
  }
}

TEST_F(StatisticsCommand, ARunThatFailsLeavesNoTrace) {
  const auto routes = (folder_ / "routes").string();
  fails({"run", demo_, "What is a glacier made of?", "--ctx", "10", "--trace-routes", routes}, "context");
  EXPECT_FALSE(std::filesystem::exists(routes));
  fails({"run", demo_, "x", "--trace-routes", (folder_ / "no" / "routes").string()}, "routes");
}

TEST_F(StatisticsCommand, ARunWritesWhatStatsReads) {
  const auto file = (folder_ / "run.json").string();
  const auto run = sluice({"run", demo_, "Define glacier.", "--temperature", "0", "--no-think", "--pool",
                           "2M", "--no-heat", "--stats", "--stats-file", file});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.out, "Glacier (noun): a slowly moving mass of ice.\n");
  const auto summary = parse_json(run.err, "err").value();  // piped: JSON
  const auto written = parse_json(sluice({"stats", file, "--json"}).out, "out").value();
  EXPECT_EQ(written["prefill_tokens"], summary["prompt_tokens"]);
  EXPECT_EQ(written["tokens"], summary["generated_tokens"].get<int>() - 1);  // the last one is not fed back
  EXPECT_EQ(written["totals"]["misses"], summary["experts"]["misses"]);
  EXPECT_GT(summary["experts"]["misses"], 0);
  EXPECT_FALSE(written["timeline"].empty());
}

TEST_F(StatisticsCommand, ARunOnADeviceTellsWhatCrossedTheBus) {
  const auto run =
      sluice({"run", demo_, "Define glacier.", "--temperature", "0", "--no-think", "--backend", "emulated",
              "--pool", "4M", "--device-pool", "1M", "--no-heat", "--max-tokens", "1", "--stats", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  const auto device = parse_json(run.out, "out").value()["stats"]["experts"]["device"];
  EXPECT_GT(device["copied"], 0);
  EXPECT_GT(device["bus_bytes"], 0);
  fails({"run", demo_, "x", "--device-pool", "1M"}, "backend cpu");
  EXPECT_EQ(sluice({"run", demo_, "x", "--device-pool", "much"}).code, 2);
}

// With every record in a device's memory nothing but this makes the host look at what was chosen.
TEST_F(StatisticsCommand, ExpertsAreCountedOnADeviceThatHoldsAllOfThem) {
  const auto run = sluice({"run", demo_, "Define glacier.", "--temperature", "0", "--no-think", "--backend",
                           "emulated", "--device-pool", "auto", "--max-tokens", "1", "--stats", "--json"});
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_GT(parse_json(run.out, "out").value()["stats"]["experts"]["hits"], 0);
}

TEST_F(StatisticsCommand, BenchMeasuresAModel) {
  const auto r =
      sluice({"bench", demo_, "--prefill", "16,32", "--decode", "4", "--pool", "2M", "--no-heat", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto out = parse_json(r.out, "out").value();
  ASSERT_EQ(out["prefill"].size(), 2U);
  EXPECT_EQ(out["prefill"][1]["tokens"], 32);
  EXPECT_EQ(out["decode"]["tokens"], 4);
  EXPECT_GT(out["decode"]["tokens_per_second"], 0.0);
  EXPECT_GT(out["drive_bytes_per_second"], 0.0);
  EXPECT_LE(out["pool_bytes"], 2 << 20);
}

TEST_F(StatisticsCommand, BenchHoldsStepsAgainstTheMachine) {
  const auto r = sluice({"bench", demo_, "--roofline", "--prefill", "16", "--repeat", "2", "--depth", "8,40",
                         "--rows", "1,3", "--same-experts", "--decode", "3", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json out = parse_json(r.out, "out").value();
  EXPECT_GT(out["machine"]["read_bytes_per_second"], 0);
  EXPECT_GT(out["machine"]["multiply_adds_per_second"], 0);
  ASSERT_EQ(out["prefill"].size(), 1U);
  EXPECT_EQ(out["prefill"][0]["repetitions"], 2);
  EXPECT_GT(out["prefill"][0]["share_of_multiply_rate"], 0);
  ASSERT_EQ(out["decode"].size(), 4U);
  for (const Json& d : out["decode"]) {
    EXPECT_EQ(d["repetitions"], 3);
    EXPECT_GT(d["share_of_read_rate"], 0);
    // Rows that are copies touch no more than one does.
    EXPECT_EQ(d["bytes_touched"], out["decode"][0]["bytes_touched"]);
  }
  const auto rounded = sluice({"bench", demo_, "--depth", "40", "--decode", "2", "--kv", "q8", "--json"});
  ASSERT_EQ(rounded.code, 0) << rounded.err;
  EXPECT_EQ(parse_json(rounded.out, "out").value()["decode"][0]["repetitions"], 2);
  EXPECT_EQ(sluice({"bench", demo_, "--shape", "tiny"}).code, 2);
  EXPECT_EQ(sluice({"bench", "--shape", "tiny", "--roofline"}).code, 2);
  EXPECT_EQ(sluice({"bench", demo_, "--rows", "9"}).code, 2);
}

TEST_F(StatisticsCommand, BenchOfAShapeMeasuresTheBus) {
  const auto r = sluice({"bench", "--shape", "tiny", "--backend", "emulated", "--device-pool", "100K",
                         "--decode", "2", "--depth", "16", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const auto bus = parse_json(r.out, "out").value()["decode"][0]["bus"];
  EXPECT_GT(bus["bytes_a_step"], 0);
  EXPECT_GT(bus["copies_per_second"], 0.0);
  EXPECT_GT(bus["device_hits"], 0);
}

TEST_F(StatisticsCommand, BenchRefusesWhatItCannotReplay) {
  const auto good =
      folder_.write("a", "sluice-routes 1 layers 1 experts 4 top 2 record_bytes 0\ndecode 1\n0 1 2\n");
  const auto other = folder_.write("b", "sluice-routes 1 layers 2 experts 4 top 2 record_bytes 0\n");
  EXPECT_THAT(sluice({"bench", "--policy-trace", good.string()}).out,
              HasSubstr("records read by decode steps"));
  EXPECT_EQ(sluice({"bench", "--policy-trace", other.string()}).code, 0);
  fails({"bench", "--policy-trace", good.string(), other.string()}, "2 layers of 4 experts");
  fails({"bench", "--policy-trace", folder_.write("c", "hello\n").string()}, "line 1: header 'hello'");
  fails({"bench", "--policy-trace", (folder_ / "none").string()}, "none");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"bench"},
        {"bench", "--policy-trace", good.string(), "--policy-synthetic"},
        {"bench", "--policy-trace", good.string(), "--pool-share", "0"},
        {"bench", "--policy-trace", good.string(), "--pool-share", "nan"},
        {"bench", "--policy-trace", good.string(), "--pool-share", "1.5"},
        {"bench", "--policy-trace", good.string(), "--half-life", "0"},
        {"bench", "--policy-trace", good.string(), "--prefill-weight", "-1"},
        {"stats"}}) {
    EXPECT_EQ(sluice(arguments).code, 2) << arguments.back();
  }
}

TEST_F(StatisticsCommand, HelpCarriesAnExample) {
  for (const char* command : {"stats", "bench"}) {
    const auto r = sluice({command, "--help"});
    EXPECT_EQ(r.code, 0);
    EXPECT_THAT(r.out, HasSubstr("Example:\n  sluice " + std::string(command)));
  }
}

}  // namespace
}  // namespace sluice
