// The picture of a run: well-formed, self-contained, for any shape.
#include "experts/statistics_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>

namespace sluice::experts {
namespace {

using testing::HasSubstr;

/// Checks that a text is one XML element with balanced tags, quoted attributes and no bare < or &.
/// Returns what is wrong, or nothing.
std::string xml_fault(std::string_view text) {
  std::vector<std::string> open;
  std::size_t at = 0;
  bool seen_root = false;
  const auto entity = [&](std::size_t from) {
    const auto rest = text.substr(from, 6);
    return rest.rfind("&lt;", 0) == 0 || rest.rfind("&gt;", 0) == 0 || rest.rfind("&amp;", 0) == 0 ||
           rest.rfind("&quot;", 0) == 0;
  };
  if (text.rfind("<?xml", 0) == 0) at = text.find("?>") + 2;
  while (at < text.size()) {
    if (text[at] == '&' && !entity(at)) return "bare &";
    if (text[at] != '<') {
      if (open.empty() && std::isspace(static_cast<unsigned char>(text[at])) == 0) return "text outside";
      ++at;
      continue;
    }
    const bool closes = text[at + 1] == '/';
    at += closes ? 2 : 1;
    std::string name;
    while (at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0) name += text[at++];
    if (name.empty()) return "tag without a name";
    if (closes) {
      if (open.empty() || open.back() != name || text[at] != '>') return "</" + name + "> out of place";
      open.pop_back();
      ++at;
      continue;
    }
    if (open.empty() && std::exchange(seen_root, true)) return "second root";
    while (true) {
      while (at < text.size() && text[at] == ' ') ++at;
      if (at >= text.size()) return "open tag " + name;
      if (text[at] == '>') {
        open.push_back(name);
        ++at;
        break;
      }
      if (text.substr(at, 2) == "/>") {
        at += 2;
        break;
      }
      const std::size_t equals = text.find("=\"", at);
      if (equals == std::string_view::npos) return "attribute of " + name;
      for (std::size_t i = at; i < equals; ++i) {
        if (std::isalnum(static_cast<unsigned char>(text[i])) == 0 && text[i] != '-') return "attribute name";
      }
      const std::size_t end = text.find('"', equals + 2);
      if (end == std::string_view::npos) return "attribute value of " + name;
      if (text.substr(equals + 2, end - equals - 2).find('<') != std::string_view::npos)
        return "< in a value";
      at = end + 1;
    }
  }
  return open.empty() ? (seen_root ? "" : "no root") : "unclosed " + open.back();
}

void check(const std::string& svg) {
  EXPECT_EQ(xml_fault(svg), "");
  for (const char* word : {"<script", "href", "url(", "nan", "inf\"", "e+"}) {
    EXPECT_EQ(svg.find(word), std::string::npos) << word;
  }
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme: dark"));
}

TEST(XmlFault, FindsFaults) {
  for (const char* bad :
       {"", "<a>", "<a></b>", "<a/><b/>", "<a b=c/>", "<a>&</a>", "<a><b></a></b>", "x<a/>"}) {
    EXPECT_NE(xml_fault(bad), "") << bad;
  }
  EXPECT_EQ(xml_fault("<a b=\"c\"><d/>&lt;</a>"), "");
}

TEST(StatisticsPlot, IsWellFormedForAnyShapeAndAnEmptyTimeLine) {
  for (const auto& [layers, experts] : std::initializer_list<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {1, 1024}, {64, 1}, {9, 32}, {64, 1024}, {1024, 2}, {1, 4096}}) {
    auto s = Statistics::create({layers, experts, 1 << 20, 10, 10 << 20, "io_uring"}).value();
    check(statistics_plot(s));
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      for (std::int64_t expert = 0; expert < experts; ++expert) {
        for (std::int64_t n = 0; n < (layer * 7 + expert * 3) % 11; ++n) s.hit(layer, expert);
      }
    }
    const std::string svg = statistics_plot(s);
    check(svg);
    EXPECT_THAT(svg, HasSubstr("No time line was recorded"));
    EXPECT_LT(svg.size(), 6U << 20) << layers << " " << experts;
  }
}

Statistics with_steps(int steps) {
  auto s = Statistics::create({2, 8, 1000, 4, 4000, "threads"}).value();
  s.enable_timeline(5000);
  for (int step = 0; step < steps; ++step) {
    s.begin_step(1, Use::kDecode);
    const double t = s.now();
    s.spent(Part::kRouter, 0, t, t + 1e-4);
    for (int i = 0; i < 40; ++i) s.read(1, i % 8, 1000, t, t + 2e-4);
    s.spent(Part::kWait, 1, t + 1e-4, t + 2e-4);
    while (s.now() < t + 3e-4) {
    }
    s.end_step();
  }
  return s;
}

TEST(StatisticsPlot, ShowsTheLastStepsInLanes) {
  for (const int steps : {1, 3, 20}) {
    const std::string svg = statistics_plot(with_steps(steps));
    check(svg);
    std::size_t shown = 0;
    for (std::size_t at = 0; (at = svg.find("step of 1 rows", at)) != std::string::npos; ++at) ++shown;
    EXPECT_EQ(shown, static_cast<std::size_t>(std::min(steps, 3)));
    EXPECT_THAT(svg, HasSubstr("layer 0 router"));
    EXPECT_THAT(svg, HasSubstr("layer 1 wait"));
    EXPECT_THAT(svg, HasSubstr("layer 1 expert 7, 1000 B"));
  }
}

TEST(StatisticsPlot, BarsWithoutStepsAndBarsOfNoLengthAreDrawn) {
  auto s = Statistics::create({2, 8, 1000, 4, 4000, "a<b>&\"c"}).value();
  s.enable_timeline();
  s.spent(Part::kHead, -1, 1, 1);
  check(statistics_plot(s));
  s.spent(Part::kHead, -1, 1, 1e12);
  s.read(-1, -1, 1, 0, 5);
  check(statistics_plot(s));
}

TEST(StatisticsPlot, SaysWhatChangedTheResults) {
  auto s = with_steps(1);
  s.set_cut_weak(0.1);
  const std::string svg = statistics_plot(s);
  check(svg);
  EXPECT_THAT(svg, HasSubstr("RESULTS ARE CHANGED by --cut-weak 0.1"));
}

}  // namespace
}  // namespace sluice::experts
