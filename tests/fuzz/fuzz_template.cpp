// A hostile template, rendered with a conversation under small limits.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json.h"
#include "text/jinja/template.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using sluice::Json;
  static const Json kVariables = {
      {"messages",
       {{{"role", "system"}, {"content", " Be brief. "}},
        {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "h\u00e9llo"}}}}},
        {{"role", "assistant"},
         {"content", nullptr},
         {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", {{"a", 1}, {"b", {1.5, true}}}}}}}}}}}},
      {"tools", Json::array({{{"name", "f"}}})},
      {"add_generation_prompt", true},
      {"s", "text"},
      {"n", 3}};
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = sluice::text::jinja::Template::parse(source, "fuzz");
  if (!parsed.ok()) return 0;
  const sluice::text::jinja::Limits limits{1 << 16, 1 << 20, 100'000, 300};
  const auto text = parsed->render(kVariables, limits);
  if (text.ok() && !sluice::text::is_valid_utf8(*text)) std::abort();
  return 0;
}
