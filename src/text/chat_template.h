// Conversations to prompt text, by the template that comes with a model.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "text/jinja/template.h"

namespace sluice::text {

/// A model's chat template and the special tokens it may name. Immutable; may be used from several threads.
class ChatTemplate {
 public:
  /// Reads `folder`/chat_template.jinja or, without it, `chat_template` of tokenizer_config.json: a string,
  /// or a list of {name, template} of which "default" is taken. kNotFound when there is neither.
  static Result<ChatTemplate> load(const std::filesystem::path& folder);

  /// A template from its text, with no special tokens.
  static Result<ChatTemplate> parse(std::string_view source, std::string_view name = "chat template");

  /// The prompt for `messages`, a list of objects. `options` (an object or null) holds what else the template
  /// sees: tools, enable_thinking, reasoning_effort, preserve_thinking, add_generation_prompt and any other
  /// key. What is absent stays undefined in the template, as the special tokens do that the model lacks.
  ///
  /// Arguments of tool calls given as a JSON string are turned into the mapping that templates expect; an
  /// empty string counts as no arguments.
  ///
  /// When the template raises an exception, the error's message is its text alone.
  [[nodiscard]] Result<std::string> render(const Json& messages, const Json& options) const;

 private:
  explicit ChatTemplate(jinja::Template parsed) : template_(std::move(parsed)) {}

  jinja::Template template_;
  Json tokens_ = Json::object();  // bos_token and the like
};

}  // namespace sluice::text
