#include "text/chat_template.h"

#include <utility>

#include "base/file.h"
#include "text/model_json.h"

namespace sluice::text {
namespace {

constexpr std::uint64_t kMaxConfig = std::uint64_t{64} << 20;
constexpr const char* kTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

// A token in tokenizer_config.json is a string, or an object with its text as `content`.
Result<Json> special_tokens(const ModelJson& config, std::string_view what) {
  Json tokens = Json::object();
  for (const char* name : kTokenNames) {
    const ModelJson* value = member(config, name);
    if (value == nullptr) continue;
    if (value->is_object()) {
      SLUICE_ASSIGN(tokens[name], string_member(*value, "content", what));
    } else {
      SLUICE_ASSIGN(tokens[name], string_member(config, name, what));
    }
  }
  return tokens;
}

// The template inside tokenizer_config.json.
Result<std::string> template_of(const ModelJson& config, std::string_view what) {
  const ModelJson* value = member(config, "chat_template");
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  if (value != nullptr && value->is_array()) {
    for (const ModelJson& entry : *value) {
      SLUICE_ASSIGN(const std::string name, string_member(entry, "name", what));
      if (name == "default") return string_member(entry, "template", what);
    }
    return make_error(ErrorCode::kNotFound, "{}: no chat template is named 'default'", what);
  }
  if (value != nullptr) {
    return make_error(ErrorCode::kCorrupt, "{}: chat_template is a {}, need a string or a list", what,
                      value->type_name());
  }
  return make_error(ErrorCode::kNotFound, "{}: no chat_template, and no chat_template.jinja beside it", what);
}

// Turns arguments from the text of a JSON object into that object.
Result<void> parse_arguments(Json& function, std::size_t message) {
  if (!function.is_object()) return {};
  const auto it = function.find("arguments");
  if (it == function.end() || !it->is_string()) return {};
  const auto& text = it->get_ref<const std::string&>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    *it = Json::object();
    return {};
  }
  SLUICE_ASSIGN(Json arguments,
                parse_json(text, fmt::format("arguments of a tool call in message {}", message)));
  if (!arguments.is_object()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "arguments of a tool call in message {}: need an object, not {}", message,
                      arguments.type_name());
  }
  *it = std::move(arguments);
  return {};
}

Result<void> parse_tool_calls(Json& messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!messages[i].is_object()) continue;
    const auto calls = messages[i].find("tool_calls");
    if (calls == messages[i].end() || !calls->is_array()) continue;
    for (Json& call : *calls) {
      if (!call.is_object()) continue;
      SLUICE_TRY(parse_arguments(call, i));
      const auto function = call.find("function");
      if (function != call.end()) SLUICE_TRY(parse_arguments(*function, i));
    }
  }
  return {};
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view source, std::string_view name) {
  SLUICE_ASSIGN(jinja::Template parsed, jinja::Template::parse(source, name));
  return ChatTemplate(std::move(parsed));
}

Result<ChatTemplate> ChatTemplate::load(const std::filesystem::path& folder) {
  const auto config_path = folder / "tokenizer_config.json";
  const auto template_path = folder / "chat_template.jinja";
  std::error_code ignored;
  ModelJson config;
  if (std::filesystem::exists(config_path, ignored)) {
    SLUICE_ASSIGN(const std::string text, read_text_file(config_path, kMaxConfig));
    SLUICE_ASSIGN(config, parse_model_json(text, config_path.string()));
  }
  std::string source;
  std::string name = template_path.string();
  if (std::filesystem::exists(template_path, ignored)) {
    SLUICE_ASSIGN(source, read_text_file(template_path, jinja::kMaxSourceBytes));
  } else {
    name = config_path.string();
    SLUICE_ASSIGN(source, template_of(config, name));
  }
  SLUICE_ASSIGN(ChatTemplate loaded, parse(source, name));
  SLUICE_ASSIGN(loaded.tokens_, special_tokens(config, config_path.string()));
  return loaded;
}

Result<std::string> ChatTemplate::render(const Json& messages, const Json& options) const {
  if (!messages.is_array()) {
    return make_error(ErrorCode::kInvalidArgument, "messages must be a list, not {}", messages.type_name());
  }
  if (!options.is_object() && !options.is_null()) {
    return make_error(ErrorCode::kInvalidArgument, "chat options must be an object, not {}",
                      options.type_name());
  }
  if (messages.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "Cannot apply chat template to an empty conversation. Provide at least one message.");
  }
  Json variables = tokens_;
  if (options.is_object()) variables.update(options);
  variables["messages"] = messages;
  SLUICE_TRY(parse_tool_calls(variables["messages"]));
  return template_.render(variables);
}

}  // namespace sluice::text
