// sluice tokenize, detokenize, render: the text side of a model, without its weights.
#include <fmt/format.h>

#include <memory>

#include "base/file.h"
#include "base/json.h"
#include "command.h"
#include "decode/token_ids.h"
#include "terminal.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace sluice::cli {
namespace {

constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;

struct TextOptions {
  std::string model;
  std::string input;
  std::string options = "{}";
  bool json = false;
};

/// Text given on the command line, or by a file as `@FILE`.
Result<std::string> text_or_file(const std::string& given) {
  if (given.size() > 1 && given[0] == '@') return read_text_file(given.substr(1), kMostBytes);
  return given;
}

Result<void> tokenize(const TextOptions& options) {
  SLUICE_ASSIGN(const auto tokenizer, text::Tokenizer::load(options.model));
  SLUICE_ASSIGN(const auto text, text_or_file(options.input));
  SLUICE_ASSIGN(const auto ids, tokenizer->encode(text));
  if (options.json) {
    Json tokens = Json::array();
    for (const auto id : ids) tokens.push_back(tokenizer->token_bytes(id));
    print_out("{}\n", dump_json({{"ids", ids}, {"tokens", tokens}, {"count", ids.size()}}));
  } else {
    print_out("{}\n", fmt::join(ids, " "));
  }
  return {};
}

Result<void> detokenize(const TextOptions& options) {
  SLUICE_ASSIGN(const auto tokenizer, text::Tokenizer::load(options.model));
  SLUICE_ASSIGN(const auto list, text_or_file(options.input));
  SLUICE_ASSIGN(const auto ids, decode::parse_token_ids(list));
  for (const auto id : ids) {
    if (!tokenizer->is_token(id)) {
      return make_error(ErrorCode::kInvalidArgument, "token {}: the tokenizer has ids 0 to {}", id,
                        tokenizer->vocab_size() - 1);
    }
  }
  const std::string text = tokenizer->decode(ids);
  if (options.json) {
    print_out("{}\n", dump_json({{"text", text}}));
  } else {
    print_out("{}\n", text);
  }
  return {};
}

Result<void> render(const TextOptions& options) {
  SLUICE_ASSIGN(const auto chat_template, text::ChatTemplate::load(options.model));
  SLUICE_ASSIGN(const auto file, read_text_file(options.input, kMostBytes));
  SLUICE_ASSIGN(Json messages, parse_json(file, options.input));
  SLUICE_ASSIGN(const auto options_text, text_or_file(options.options));
  SLUICE_ASSIGN(Json template_options, parse_json(options_text, "--options"));
  if (!template_options.is_object()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--options: needed a JSON object such as {{\"enable_thinking\": false}}");
  }
  // Also a whole request: {"messages": [...], "tools": [...]}.
  if (messages.is_object() && messages.contains("messages")) {
    for (const auto& [key, value] : messages.items()) {
      if (key != "messages" && !template_options.contains(key)) template_options[key] = value;
    }
    messages = Json(messages["messages"]);
  }
  SLUICE_ASSIGN(const auto prompt, chat_template.render(messages, template_options));
  if (options.json) {
    print_out("{}\n", dump_json({{"text", prompt}}));
  } else {
    print_out("{}", prompt);
  }
  return {};
}

void finish(CLI::App& command, Invocation& invocation, const std::shared_ptr<TextOptions>& options,
            Result<void> (*action)(const TextOptions&)) {
  command.add_flag("--json", options->json, "JSON output");
  command.callback([options, &invocation, action] {
    invocation.run = [options, action] {
      const auto result = action(*options);
      return result.ok() ? kDone : fail(result.error());
    };
  });
}

}  // namespace

void add_text_tools(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<TextOptions>();
  CLI::App* command = add_command(app, "tokenize", "Token ids of a text.",
                                  "sluice tokenize models/demo \"Define glacier.\" --json");
  command->add_option("MODEL", options->model, "folder of the model, or its tokenizer.json")->required();
  command->add_option("TEXT", options->input, "the text, or @FILE")->required();
  finish(*command, invocation, options, tokenize);

  options = std::make_shared<TextOptions>();
  command = add_command(app, "detokenize", "Text of token ids.", "sluice detokenize models/demo 38,75,431");
  command->add_option("MODEL", options->model, "folder of the model, or its tokenizer.json")->required();
  command->add_option("IDS", options->input, "ids with commas or a JSON array, or @FILE")->required();
  finish(*command, invocation, options, detokenize);

  options = std::make_shared<TextOptions>();
  command = add_command(app, "render", "The prompt that a conversation becomes.",
                        "sluice render models/demo messages.json --options '{\"enable_thinking\": false}'");
  command->add_option("MODEL", options->model, "folder of the model")->required();
  command->add_option("MESSAGES", options->input, "JSON file: a list of messages, or a request holding one")
      ->required();
  command->add_option("--options", options->options,
                      "JSON object: tools, enable_thinking, reasoning_effort ...");
  finish(*command, invocation, options, render);
}

}  // namespace sluice::cli
