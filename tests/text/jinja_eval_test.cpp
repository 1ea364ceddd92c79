#include <gtest/gtest.h>

#include <ctime>

#include "jinja_test.h"

namespace sluice::text::jinja {
namespace {

TEST(JinjaValues, PrintAsPythonDoes) {
  EXPECT_EQ(render("{{ [true, none, 1.0, 1e16, 1e-5, 'it\\'s', {'a': (1,)}] }}"),
            "[True, None, 1.0, 1e+16, 1e-05, \"it's\", {'a': (1,)}]");
  EXPECT_EQ(render("{{ 0.1 + 0.2 }} {{ 7 / 2 }} {{ 6 / 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }}"),
            "0.30000000000000004 3.5 2.0 -4 2 1024");
}

TEST(JinjaValues, StringsCountCodePoints) {
  const Json v = {{"u", "h\u00e9\u4e16\U0001F389"}};
  EXPECT_EQ(render("{{ u|length }}{{ u[1] }}{{ u[-1] }}{{ u[::-1] }}{{ u[1:3] }}", v),
            "4\u00e9\U0001F389\U0001F389\u4e16\u00e9h\u00e9\u4e16");
  EXPECT_EQ(render("{{ u.find('\u4e16') }}{{ u[:2]|upper }}", v), "2H\u00c9");
}

TEST(JinjaValues, UndefinedIsFalsyAndSilentButHasNoParts) {
  EXPECT_EQ(render("[{{ x }}{{ 'y' if x }}{% for a in x %}1{% endfor %}{{ x|length }}{{ x == y }}]"),
            "[0True]");
  EXPECT_EQ(render("{{ x is defined }}{{ x|default('d') }}{{ {}.a is undefined }}"), "FalsedTrue");
  EXPECT_EQ(render("{{ x + 1 }}"), "error: test: line 1: 'x' is undefined");
}

TEST(JinjaValues, IntegersBeyondSignedRangePrintExactly) {
  const Json v = {{"n", 18446744073709551615ULL}};
  EXPECT_EQ(render("{{ n }} {{ [n]|tojson }} {{ n is integer }} {{ n > 5 }}", v),
            "18446744073709551615 [18446744073709551615] True True");
  EXPECT_EQ(try_render("{{ 9223372036854775807 + 1 }}").error().code, ErrorCode::kLimit);
}

TEST(JinjaValues, TojsonIsJsonDumpsWithoutAscii) {
  const Json v = {{"d", {{"b", "<&'\u00fc\"\n"}, {"a", {1, 2.5, nullptr, true}}}}};
  EXPECT_EQ(render("{{ d|tojson }}", v), "{\"b\": \"<&'\u00fc\\\"\\n\", \"a\": [1, 2.5, null, true]}");
  EXPECT_EQ(render("{{ {'a': [1, {}], 'b': []}|tojson(indent=2) }}"),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
}

TEST(JinjaScope, LoopsAndMacrosKeepTheirNamesAndNamespacesShare) {
  EXPECT_EQ(render("{% set x = 0 %}{% for i in [1, 2] %}{% set x = x + i %}{% endfor %}{{ x }}"), "0");
  EXPECT_EQ(
      render("{% set n = namespace(x=0) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}"),
      "3");
  EXPECT_EQ(render("{% if true %}{% set x = 2 %}{% endif %}{{ x }}"), "2");
  EXPECT_EQ(render("{% macro m() %}{% set y = 1 %}{% endmacro %}{{ m() }}{{ y }}"), "");
}

TEST(JinjaLoops, LoopVariableBreakAndContinue) {
  EXPECT_EQ(
      render("{% for x in 'abc' %}{{ loop.index }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.last }} "
             "{% endfor %}"),
      "1bFalse 2acFalse 3bTrue ");
  EXPECT_EQ(render("{% for x in range(9) %}{% if x == 1 %}{% continue %}{% endif %}"
                   "{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}"),
            "023");
}

TEST(JinjaLists, AppendAndPopChangeTheListInPlace) {
  EXPECT_EQ(render("{% set l = [1] %}{% set m = l %}{% set _ = l.append(2) %}{{ m }}{{ l.pop(0) }}{{ m }}"),
            "[1, 2]1[2]");
}

TEST(JinjaFunctions, StrftimeNowGivesTheYear) {
  std::time_t now = std::time(nullptr);
  std::string before = std::to_string(1900 + std::localtime(&now)->tm_year);
  const std::string text = render("{{ strftime_now('%Y') }}");
  now = std::time(nullptr);
  const std::string after = std::to_string(1900 + std::localtime(&now)->tm_year);
  EXPECT_TRUE(text == before || text == after) << text;
}

TEST(JinjaFunctions, VariablesHideFunctions) {
  EXPECT_EQ(render("{{ range }}", {{"range", "mine"}}), "mine");
}

TEST(JinjaInput, AnyJsonBecomesValues) {
  const Json v = {{"a", Json::array({nullptr, -1, 2.5, "x", Json::object(), Json::array()})}};
  EXPECT_EQ(render("{{ a }}", v), "[None, -1, 2.5, 'x', {}, []]");
  EXPECT_EQ(render("{{ s }}", {{"s", "a\xff"}}), "a\uFFFD");
  EXPECT_FALSE(try_render("", {{"b", Json::binary({1, 2})}}).ok());
  EXPECT_FALSE(try_render("", Json::array()).ok());
}

}  // namespace
}  // namespace sluice::text::jinja
