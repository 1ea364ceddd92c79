#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "fixtures.h"

namespace sluice::text {
namespace {

const ChatTemplate& demo() {
  static const ChatTemplate kTemplate = [] {
    auto loaded = ChatTemplate::load(SLUICE_MODELS "/demo");
    if (!loaded.ok()) throw std::runtime_error(loaded.error().message);
    return std::move(*loaded);
  }();
  return kTemplate;
}

TEST(ChatGolden, RendersAndEncodesAsTheReferenceDoes) {
  const Json cases = read_json(SLUICE_TEST_DATA "/text/chat_golden.json");
  ASSERT_GT(cases.size(), 15U);
  for (const Json& one : cases) {
    SCOPED_TRACE(one["messages"].dump());
    const auto text = demo().render(one["messages"], one["options"]);
    if (one.contains("error")) {
      ASSERT_FALSE(text.ok());
      EXPECT_EQ(text.error().message, one["error"].get<std::string>());
      continue;
    }
    ASSERT_TRUE(text.ok()) << text.error().message;
    EXPECT_EQ(*text, one["text"].get<std::string>());
    EXPECT_EQ(encode_or_throw(demo_tokenizer(), *text), one["ids"].get<std::vector<std::int32_t>>());
  }
}

std::string render(const std::string& source, const Json& messages, const Json& options = nullptr) {
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed.ok()) return "error: " + parsed.error().message;
  const auto text = parsed->render(messages, options);
  return text.ok() ? *text : "error: " + text.error().message;
}

Json user(const std::string& content) {
  return Json::array({{{"role", "user"}, {"content", content}}});
}

TEST(ChatTemplate, AbsentOptionsStayUndefined) {
  const char* source = "{{ tools is defined }}{{ enable_thinking is defined }}{{ custom }}";
  EXPECT_EQ(render(source, user("a")), "FalseFalse");
  EXPECT_EQ(render(source, user("a"), {{"tools", nullptr}, {"enable_thinking", false}, {"custom", 7}}),
            "TrueTrue7");
}

TEST(ChatTemplate, TheMessagesCannotBeReplacedByAnOption) {
  EXPECT_EQ(render("{{ messages[0].content }}", user("mine"), {{"messages", "other"}}), "mine");
}

TEST(ChatTemplate, ArgumentsGivenAsTextBecomeAMapping) {
  const char* source = "{{ messages[0].tool_calls[0].function.arguments|tojson }}";
  const auto with = [](const Json& arguments) {
    const Json call = {{"type", "function"}, {"function", {{"name", "f"}, {"arguments", arguments}}}};
    return Json::array({{{"role", "assistant"}, {"tool_calls", Json::array({call})}}});
  };
  EXPECT_EQ(render(source, with(R"({"b": 1, "a": [true]})")), R"({"b": 1, "a": [true]})");
  EXPECT_EQ(render(source, with({{"b", 1}})), R"({"b": 1})");
  EXPECT_EQ(render(source, with("")), "{}");
  EXPECT_EQ(render(source, with("[1]")),
            "error: arguments of a tool call in message 0: need an object, not array");
  EXPECT_EQ(render(source, with("{")).substr(0, 50), "error: arguments of a tool call in message 0: not ");
  EXPECT_EQ(render(source, with(std::string(100'000, '['))).substr(0, 46),
            "error: arguments of a tool call in message 0: ");
  EXPECT_EQ(render("{{ messages[0].tool_calls[0].arguments.x }}",
                   Json::array({{{"tool_calls", {{{"name", "f"}, {"arguments", "{\"x\": 5}"}}}}}})),
            "5");
}

TEST(ChatTemplate, ArgumentsRenderTheSameGivenEitherWay) {
  for (const Json& one : read_json(SLUICE_TEST_DATA "/text/chat_golden.json")) {
    if (one.contains("error")) continue;
    Json messages = one["messages"];
    for (Json& message : messages) {
      if (!message.contains("tool_calls")) continue;
      for (Json& call : message["tool_calls"]) {
        call["function"]["arguments"] = dump_json(call["function"]["arguments"]);
      }
    }
    const auto text = demo().render(messages, one["options"]);
    ASSERT_TRUE(text.ok()) << text.error().message;
    EXPECT_EQ(*text, one["text"].get<std::string>());
  }
}

TEST(ChatTemplate, MessagesOfAnyShapeGiveTextOrAnError) {
  const Json odd[] = {nullptr,
                      true,
                      7,
                      -1.5,
                      "text",
                      Json::array(),
                      Json::object(),
                      {{"role", 3}},
                      {1, 2},
                      {{"role", "user"}},
                      "\xff",
                      Json::binary({1})};
  for (const Json& a : odd) {
    EXPECT_FALSE(demo().render(a, nullptr).ok() && !a.is_array());
    static_cast<void>(demo().render(user("x"), a));
    for (const Json& b : odd) {
      static_cast<void>(demo().render(Json::array({a, b}), nullptr));
      for (const char* role : {"system", "user", "assistant", "tool", "other"}) {
        const Json message = {{"role", role}, {"content", a}, {"reasoning_content", b}, {"tool_calls", b}};
        static_cast<void>(
            demo().render(Json::array({message, user("x")[0]}), {{"tools", a}, {"enable_thinking", b}}));
        const Json call = {{"role", role},
                           {"tool_calls", {{{"function", a}}, {{"function", {{"arguments", b}}}}}}};
        static_cast<void>(demo().render(Json::array({user("x")[0], call}), nullptr));
      }
    }
  }
  EXPECT_EQ(demo().render(7, nullptr).error().message, "messages must be a list, not number");
  EXPECT_EQ(demo().render(user("x"), 7).error().message, "chat options must be an object, not number");
}

class ChatTemplateFolder : public testing::Test {
 protected:
  ChatTemplateFolder() : folder_(std::filesystem::path(testing::TempDir()) / unique_name()) {
    std::filesystem::create_directories(folder_);
  }
  ~ChatTemplateFolder() override { std::filesystem::remove_all(folder_); }

  static std::string unique_name() {
    return std::string("sluice_chat_") + testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  void write(const char* name, std::string_view text) const { std::ofstream(folder_ / name) << text; }
  [[nodiscard]] std::string rendered() const {
    const auto loaded = ChatTemplate::load(folder_);
    if (!loaded.ok()) return "error: " + loaded.error().message;
    const auto text = loaded->render(user("hi"), nullptr);
    return text.ok() ? *text : "error: " + text.error().message;
  }

  std::filesystem::path folder_;
};

TEST_F(ChatTemplateFolder, TheTemplateFileComesFirst) {
  write("tokenizer_config.json", R"({"chat_template": "config", "eos_token": "</s>"})");
  EXPECT_EQ(rendered(), "config");
  write("chat_template.jinja", "file {{ eos_token }}{{ bos_token is defined }}");
  EXPECT_EQ(rendered(), "file </s>False");
}

TEST_F(ChatTemplateFolder, OfSeveralTemplatesTheDefaultIsTaken) {
  write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "rag", "template": "a"}, {"name": "default", "template": "b{{ bos_token }}"}],
            "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": null})");
  EXPECT_EQ(rendered(), "b<s>");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "a"}]})");
  EXPECT_NE(rendered().find("no chat template is named 'default'"), std::string::npos);
}

TEST_F(ChatTemplateFolder, WithoutATemplateOrWithABrokenOneLoadingFails) {
  EXPECT_EQ(ChatTemplate::load(folder_).error().code, ErrorCode::kNotFound);
  for (const char* config : {"{", "[]", "7", "{}", R"({"chat_template": 7})", R"({"chat_template": [7]})",
                             R"({"chat_template": [{"name": 7}]})", R"({"chat_template": "{% if %}"})",
                             R"({"chat_template": "x", "eos_token": 7})",
                             R"({"chat_template": "x", "eos_token": {"content": 7}})"}) {
    write("tokenizer_config.json", config);
    EXPECT_FALSE(ChatTemplate::load(folder_).ok()) << config;
  }
}

}  // namespace
}  // namespace sluice::text
