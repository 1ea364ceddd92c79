#include <gtest/gtest.h>

#include "jinja_test.h"

namespace sluice::text::jinja {
namespace {

Limits small() {
  return {1 << 20, 16 << 20, 2'000'000, 500};
}

void expect_limit(const std::string& source, const Json& variables = Json::object()) {
  const auto text = try_render(source, variables, small());
  ASSERT_FALSE(text.ok()) << source.substr(0, 200);
  EXPECT_EQ(text.error().code, ErrorCode::kLimit) << source.substr(0, 200) << "\n" << text.error().message;
}

std::string repeated(std::string_view part, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += part;
  return out;
}

TEST(JinjaLimits, MemoryOfOneValue) {
  expect_limit("{{ 'x' * 10**9 }}");
  expect_limit("{{ 'xx' * 9223372036854775807 }}");
  expect_limit("{{ [1] * 10**10 }}");
  expect_limit("{{ [0] * 9223372036854775807 }}");
  expect_limit("{{ '%9999s'|format('a') * 10000 }}");
  expect_limit("{{ [1]|batch(10**15, 0)|list }}");
  expect_limit("{{ ('a' * 100000).replace('', 'b' * 10000) }}");
  expect_limit("{{ ('a' * 1000000).split('')|length if false else ('a,' * 1000000).split(',')|length }}");
  expect_limit("{{ ('ab' * 1000000)|list|length }}");
  expect_limit("{{ ('x' * 10000).join(['a'] * 100000) }}");
}

TEST(JinjaLimits, MemoryByDoubling) {
  expect_limit("{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}");
  expect_limit("{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}");
  expect_limit(
      "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}");
  expect_limit(
      "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}"
      "{% set m = namespace(s=1) %}{% for i in range(60) %}{% set m.s = [m.s, m.s] %}{% endfor %}"
      "{{ m.s == n.s }}");
  expect_limit(
      "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = (n.s, n.s) %}{% endfor %}"
      "{{ {n.s: 1} }}");
}

TEST(JinjaLimits, MemoryThatNobodyUsesIsGivenBack) {
  const auto text = try_render("{% for i in range(1000) %}{% set x = 'y' * 100000 %}{% endfor %}ok",
                               Json::object(), small());
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(*text, "ok");
}

TEST(JinjaLimits, MemoryOfListsAndNamespacesThatGrow) {
  const std::string forever = "{% for a in range(9999) %}{% for b in range(9999) %}";
  expect_limit("{% set l = [] %}" + forever + "{% set _ = l.append('abc' ~ b) %}{% endfor %}{% endfor %}");
  expect_limit("{% set l = [] %}" + forever + "{% set _ = l.append(namespace()) %}{% endfor %}{% endfor %}");
  expect_limit(forever + "{% macro m() %}{% endmacro %}{% endfor %}{% endfor %}");
}

TEST(JinjaLimits, RangesAndSteps) {
  expect_limit("{{ range(10**12) }}");
  expect_limit("{{ range(-9223372036854775807, 9223372036854775807) }}");
  expect_limit("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}");
  expect_limit("{% for a in range(99999) %}{{ big.find('b') }}{% endfor %}",
               {{"big", std::string(1 << 20, 'a')}});
  expect_limit("{% for a in range(99999) %}{{ 1 in big }}{% endfor %}",
               {{"big", Json(std::vector<int>(10000, 0))}});
}

TEST(JinjaLimits, Output) {
  expect_limit("{% for a in range(99999) %}" + std::string(1000, 'x') + "{% endfor %}");
  expect_limit("{% set q %}{% for a in range(99999) %}" + std::string(1000, 'x') +
               "{% endfor %}{% endset %}");
}

TEST(JinjaLimits, RecursionOfMacros) {
  expect_limit("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
  expect_limit(
      "{% macro m() %}{% for x in [1] %}{% if true %}{{ m()|trim }}{% endif %}{% endfor %}{% endmacro %}"
      "{{ m() }}");
  expect_limit("{% macro m(f) %}{% call m(f) %}{{ caller() }}{% endcall %}{% endmacro %}{{ m(1) }}");
  EXPECT_EQ(
      render("{% macro m(n) %}{% if n %}{{ n }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(30) }}").size(),
      51U);
}

TEST(JinjaLimits, NestingOfTheSource) {
  for (const auto& [open, close] :
       {std::pair("(", ")"), std::pair("[", "]"), std::pair("{1:", "}"), std::pair("x[", "]"),
        std::pair("f(", ")"), std::pair("not ", ""), std::pair("-", ""), std::pair("1 if 1 else ", "")}) {
    for (const int times : {60, 150, 100'000}) {
      const auto parsed =
          Template::parse("{{ " + repeated(open, times) + "1" + repeated(close, times) + " }}", "t");
      if (times < 100) {
        EXPECT_TRUE(parsed.ok()) << open << times << parsed.error().message;
      } else {
        ASSERT_FALSE(parsed.ok()) << open << times;
        EXPECT_EQ(parsed.error().code, ErrorCode::kLimit) << parsed.error().message;
      }
    }
  }
  for (const char* open :
       {"{% if 1 %}", "{% for x in y %}", "{% macro m() %}", "{% set x %}", "{% filter e %}"}) {
    EXPECT_EQ(Template::parse(repeated(open, 5000), "t").error().code, ErrorCode::kLimit) << open;
  }
  EXPECT_EQ(Template::parse("{% for " + repeated("(", 5000) + "a" + repeated(")", 5000) + " in b %}", "t")
                .error()
                .code,
            ErrorCode::kLimit);
}

TEST(JinjaLimits, LengthOfChains) {
  for (const char* link : {" + 1", " * 1", "|e", ".a", "[0]", "()", " or 1", " and 1", " - 1"}) {
    EXPECT_TRUE(Template::parse("{{ 1" + repeated(link, 100) + " }}", "t").ok()) << link;
    EXPECT_EQ(Template::parse("{{ 1" + repeated(link, 20'000) + " }}", "t").error().code, ErrorCode::kLimit)
        << link;
  }
  EXPECT_TRUE(try_render("{{ 1" + repeated(" ~ 1", 20'000) + " }}").ok());
  EXPECT_TRUE(try_render("{{ 1" + repeated(" < 2", 20'000) + " }}").ok());
}

TEST(JinjaLimits, SizeOfTheSource) {
  EXPECT_EQ(Template::parse(std::string(kMaxSourceBytes + 1, 'x'), "t").error().code, ErrorCode::kLimit);
}

TEST(JinjaLimits, DepthOfValues) {
  const std::string loop = "{% set n = namespace(v=1) %}{% for i in range(90000) %}";
  expect_limit(loop + "{% set n.v = [n.v] %}{% endfor %}");
  expect_limit(loop + "{% set n.v = (n.v,) %}{% endfor %}");
  expect_limit(loop + "{% set n.v = {'a': n.v} %}{% endfor %}");
  expect_limit(loop + "{% set n.v = [n.v].index %}{% endfor %}");
  expect_limit(loop + "{% for x in [n.v] %}{% set n.v = loop %}{% endfor %}{% endfor %}");
  Json deep = 1;
  for (int i = 0; i < 5000; ++i) deep = Json::array({std::move(deep)});
  expect_limit("{{ x }}", {{"x", std::move(deep)}});
}

TEST(JinjaLimits, ValuesThatHoldThemselvesAreHarmless) {
  const std::string make = "{% set l = [] %}{% set _ = l.append(l) %}";
  expect_limit(make + "{{ l }}");
  expect_limit(make + "{{ l|tojson }}");
  expect_limit(make + "{% set m = [] %}{% set _ = m.append(m) %}{{ l == m }}");
  EXPECT_EQ(render(make + "{{ l == l }}{{ l|length }}"), "True1");
  EXPECT_EQ(
      render("{% set n = namespace() %}{% set n.self = n %}{% set n.f = [n, n] %}{{ n.self.f|length }}"),
      "2");
  EXPECT_EQ(
      render("{% set n = namespace() %}{% macro m() %}{{ n.a }}{% endmacro %}{% set n.m = m %}{{ n.m() }}ok"),
      "ok");
  EXPECT_EQ(render("{% for x in [1] %}{{ loop.changed(loop) }}{{ loop.changed(loop) }}{% endfor %}"),
            "TrueFalse");
  EXPECT_EQ(render("{% set l = [] %}{% set _ = l.append(l.append) %}{{ l|length }}"), "1");
  // A long chain of lists, each appended to the one before: none may be destroyed by way of another.
  const auto chain = try_render(
      "{% set n = namespace(l=[]) %}{% set top = n.l %}{% for i in range(50000) %}{% set m = [] %}"
      "{% set _ = n.l.append(m) %}{% set n.l = m %}{% endfor %}{{ top|length }}");
  ASSERT_TRUE(chain.ok()) << chain.error().message;
  EXPECT_EQ(*chain, "1");
}

TEST(JinjaSandbox, NothingOfThePlatformIsInReach) {
  EXPECT_EQ(render("{{ ''.__class__ }}{{ ().__class__ }}{{ x.__init__ if x }}{{ range.__globals__ }}"), "");
  EXPECT_EQ(render("{{ ''['__class__'] }}{{ namespace().__class__ }}{{ loop is defined }}"), "False");
}

}  // namespace
}  // namespace sluice::text::jinja
