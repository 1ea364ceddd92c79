#include <gtest/gtest.h>

#include "jinja_test.h"

namespace sluice::text::jinja {
namespace {

TEST(JinjaSpace, BlocksTakeTheNewlineAfterThemAndTheIndentBefore) {
  EXPECT_EQ(render("a\n  {% if true %}\n  b\n  {% endif %}\nc"), "a\n  b\nc");
  EXPECT_EQ(render("a\n  {# note #}\nb"), "a\nb");
}

TEST(JinjaSpace, VariablesKeepWhatSurroundsThem) {
  EXPECT_EQ(render("a\n  {{ 1 }}\nb"), "a\n  1\nb");
}

TEST(JinjaSpace, MinusStripsAndPlusKeeps) {
  EXPECT_EQ(render("a  \n{%- if true -%}\n  b\n{%- endif %}c"), "abc");
  EXPECT_EQ(render("a \n {{- 1 -}} \n b"), "a1b");
  EXPECT_EQ(render("a\n  {%+ if true +%}\nb{% endif %}"), "a\n  \nb");
}

TEST(JinjaSpace, OneNewlineAtTheEndIsDropped) {
  EXPECT_EQ(render("a\n"), "a");
  EXPECT_EQ(render("a\n\n"), "a\n");
  EXPECT_EQ(render("a\r\nb\rc\r\n"), "a\nb\nc");
}

TEST(JinjaSpace, RawBlocksAreLeftAlone) {
  EXPECT_EQ(render("{% raw %}{{ x }}{% if %}{# c #}{% endraw %}"), "{{ x }}{% if %}{# c #}");
}

TEST(JinjaSyntax, StringsUnderstandPythonsEscapes) {
  EXPECT_EQ(render(R"({{ 'a\n\t\\\'\x41\u00e9\U0001F44D\101\q' }})"), "a\n\t\\'A\u00e9\U0001F44DA\\q");
  EXPECT_EQ(render(R"({{ "\ud83d\udc4d" }})"), "\U0001F44D");
  EXPECT_EQ(render(R"({{ "\ud83d!" }})"), "\uFFFD!");
}

TEST(JinjaSyntax, DelimitersInsideStringsAndDictsAreNotDelimiters) {
  EXPECT_EQ(render("{{ '}}' ~ \"%}\" }}"), "}}%}");
  EXPECT_EQ(render("{{ {'a': {'b': 1}}['a']['b'] }}"), "1");
  EXPECT_EQ(render("{{{'a': 1}}}"), "{'a': 1}");
}

TEST(JinjaSyntax, ErrorsNameTemplateAndLine) {
  EXPECT_EQ(render("a\n\n{% if x %}"), "error: test: line 3: unexpected end of template, expected endif");
  EXPECT_EQ(render("{{ 1 +\n }}"), "error: test: line 2: unexpected '}}', expected an expression");
  EXPECT_EQ(render("\n{% nosuch %}"), "error: test: line 2: unknown tag 'nosuch'");
  EXPECT_EQ(render("{{ 'abc }}"), "error: test: line 1: string without its closing '");
  EXPECT_EQ(render("{{ (1] }}"), "error: test: line 1: unexpected ']'");
}

TEST(JinjaSyntax, TagsThatReachOtherTemplatesAreRefused) {
  for (const char* source :
       {"{% include 'a' %}", "{% import 'a' as b %}", "{% extends 'a' %}", "{% block a %}"}) {
    const auto parsed = Template::parse(source, "test");
    ASSERT_FALSE(parsed.ok());
    EXPECT_EQ(parsed.error().code, ErrorCode::kUnsupported);
  }
}

TEST(JinjaSyntax, InvalidUtf8IsRefused) {
  EXPECT_FALSE(Template::parse("a\xff", "test").ok());
}

TEST(JinjaErrors, RuntimeErrorsNameTheLine) {
  EXPECT_EQ(render("a\n{{ x.y.z }}"), "error: test: line 2: 'x' is undefined");
  EXPECT_EQ(render("{{ 1 }}\n\n{{ {}.a.b }}"), "error: test: line 3: 'dict object' has no attribute 'a'");
  EXPECT_EQ(render("{{ 'a' + 1 }}"),
            "error: test: line 1: unsupported operand type(s) for +: 'str' and 'int'");
  EXPECT_EQ(render("{{ 'a'|nosuch }}"), "error: test: line 1: no filter named 'nosuch'");
  EXPECT_EQ(render("{{ f() }}"), "error: test: line 1: 'f' is undefined");
  EXPECT_EQ(render("{{ 'a'.replace(1, 'b') }}"),
            "error: test: line 1: replace(): 'old' must be a string, not int");
}

TEST(JinjaErrors, RaiseExceptionGivesItsTextAndNothingElse) {
  const auto text = try_render("\n\n{{ raise_exception('only ' ~ n ~ ' allowed') }}", {{"n", 3}});
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().message, "only 3 allowed");
  EXPECT_EQ(text.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice::text::jinja
