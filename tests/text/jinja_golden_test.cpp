#include <gtest/gtest.h>

#include "fixtures.h"
#include "text/jinja/template.h"

namespace sluice::text::jinja {
namespace {

// Results of the Python library; make_jinja_golden.py writes them.
TEST(JinjaGolden, RendersAsThePythonLibraryDoes) {
  const Json golden = read_json(SLUICE_TEST_DATA "/../text/jinja_golden.json");
  ASSERT_GT(golden["cases"].size(), 700U);
  for (const Json& one : golden["cases"]) {
    const auto source = one["template"].get<std::string>();
    SCOPED_TRACE(source);
    const auto parsed = Template::parse(source, "golden");
    EXPECT_EQ(parsed.ok(), one.value("error", "") != "syntax");
    if (!parsed.ok()) continue;
    const auto text = parsed->render(golden["variables"]);
    ASSERT_EQ(text.ok(), one.contains("result")) << (text.ok() ? *text : text.error().message);
    if (text.ok()) {
      EXPECT_EQ(*text, one["result"].get<std::string>());
    }
  }
}

}  // namespace
}  // namespace sluice::text::jinja
