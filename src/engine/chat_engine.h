// The engine behind sluice/engine.h, with the parts that tools of this project need besides.
#pragma once

#include <memory>

#include "backend/backend.h"
#include "engine/generation_config.h"
#include "model/model.h"
#include "sluice/engine.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace sluice::engine {

/// Refuses sampling values that no model takes, before there is one.
Result<void> check_sampling(const Sampling& wish);

class ChatEngine final : public Engine {
 public:
  static Result<std::unique_ptr<ChatEngine>> open(const std::filesystem::path& model,
                                                  const EngineOptions& options);

  Result<std::unique_ptr<Session>> new_session() override;
  [[nodiscard]] Result<std::string> render(std::string_view messages,
                                           std::string_view options) const override;
  [[nodiscard]] Result<std::vector<std::int32_t>> encode(std::string_view text) const override;
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override;
  [[nodiscard]] std::int64_t context() const override { return context_; }

  [[nodiscard]] model::Model& model() { return *model_; }
  [[nodiscard]] const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  [[nodiscard]] const GenerationConfig& generation() const { return generation_; }
  [[nodiscard]] Result<std::string> render(const Json& messages, const Json& options) const;
  /// Ids that may be generated: those with a token.
  [[nodiscard]] std::size_t vocab_limit() const;

 private:
  ChatEngine() = default;

  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::optional<text::ChatTemplate> template_;  // a model may come without one: --raw still works
  std::string template_error_;
  GenerationConfig generation_;
  std::int64_t context_ = 0;
};

}  // namespace sluice::engine
