// What a sequence remembers moves as a whole: commits in part, rollbacks, checkpoints, files.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <new>
#include <random>

#include "support/loaded_model.h"

namespace sluice {
namespace {

const std::filesystem::path kTiny = std::filesystem::path(SLUICE_TEST_DATA) / "model" / "tiny4";

/// All of it for keys and values in float32 and in 8 bits.
class StateTest : public testing::TestWithParam<model::KvFormat> {
 protected:
  void SetUp() override {
    model::ModelOptions options;
    options.kv = GetParam();
    loaded_ = test::load_model(kTiny, "cpu", options);
    ASSERT_NE(loaded_.model, nullptr);
    std::mt19937 random(5);
    for (int i = 0; i < 200; ++i) ids_.push_back(static_cast<std::int32_t>(random() % 512));
    for (const int i : {3, 40, 41, 90}) ids_[static_cast<std::size_t>(i)] = 2;  // the n-gram boundary
  }
  std::unique_ptr<model::SequenceState> state(std::int64_t context = 256) {
    return std::move(loaded_.model->new_state(context)).value();
  }
  // Runs `tokens` as one step and returns the logits of all its rows.
  std::vector<float> step(model::SequenceState& state, std::span<const std::int32_t> tokens) {
    std::vector<float> logits(tokens.size() * 512);
    const model::Segment segment{&state, tokens};
    model::ForwardOptions options;
    options.logits = model::ForwardOptions::Logits::kAll;
    options.on_logits = [&](std::int64_t first, std::int64_t rows,
                            model::Dev<const float> data) -> Result<void> {
      loaded_.backend->download(
          std::as_writable_bytes(std::span(logits))
              .subspan(static_cast<std::size_t>(first * 512 * 4), static_cast<std::size_t>(rows * 512 * 4)),
          model::Dev(reinterpret_cast<const std::byte*>(data.address())));
      return {};
    };
    const auto result = loaded_.model->forward(std::span(&segment, 1), options);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    return logits;
  }
  void feed(model::SequenceState& state, std::size_t first, std::size_t count) {
    step(state, std::span(ids_).subspan(first, count));
    ASSERT_TRUE(state.commit(static_cast<std::int64_t>(count)).ok());
  }
  std::vector<float> draft(model::SequenceState& state, std::int32_t token) {
    std::vector<float> logits(512);
    const auto result =
        loaded_.model->draft(state, token, 0, [&](std::int64_t, std::int64_t, model::Dev<const float> data) {
          loaded_.backend->download(std::as_writable_bytes(std::span(logits)),
                                    model::Dev(reinterpret_cast<const std::byte*>(data.address())));
          return Result<void>();
        });
    EXPECT_TRUE(result.ok());
    return logits;
  }
  test::LoadedModel loaded_;
  std::vector<std::int32_t> ids_;
};

TEST_P(StateTest, AStepRejectedAtAnyRowLeavesWhatNeverDraftingWouldHave) {
  const std::vector<std::int32_t> wrong{7, 2, 9, 11, 300, 2, 5, 1};
  for (const std::size_t prompt : {1U, 5U, 63U, 70U, 133U}) {
    for (std::size_t rows = 1; rows <= 8; ++rows) {
      for (std::size_t kept = 0; kept <= rows; ++kept) {
        auto plain = state();
        feed(*plain, 0, prompt);
        if (kept > 0) feed(*plain, prompt, kept);

        // The right tokens up to `kept`, wrong ones after.
        std::vector<std::int32_t> drafts(ids_.begin() + static_cast<std::ptrdiff_t>(prompt),
                                         ids_.begin() + static_cast<std::ptrdiff_t>(prompt + kept));
        drafts.insert(drafts.end(), wrong.begin(), wrong.begin() + static_cast<std::ptrdiff_t>(rows - kept));
        auto drafted = state();
        feed(*drafted, 0, prompt);
        step(*drafted, drafts);
        ASSERT_TRUE(drafted->commit(static_cast<std::int64_t>(kept)).ok());

        ASSERT_EQ(drafted->length(), plain->length());
        const auto next = std::span(ids_).subspan(prompt + kept, 5);
        ASSERT_EQ(step(*drafted, next), step(*plain, next)) << prompt << ' ' << rows << ' ' << kept;
        plain->rollback();
        drafted->rollback();
        ASSERT_EQ(draft(*drafted, 17), draft(*plain, 17)) << prompt << ' ' << rows << ' ' << kept;
      }
    }
  }
}

TEST_P(StateTest, ALongStepCanBeRolledBackAsAWhole) {
  auto plain = state();
  feed(*plain, 0, 50);
  auto other = state();
  feed(*other, 0, 50);
  step(*other, std::span(ids_).subspan(90, 100));
  EXPECT_FALSE(other->commit(60).ok());  // too long to keep in part
  other->rollback();
  const auto next = std::span(ids_).subspan(50, 20);
  EXPECT_EQ(step(*other, next), step(*plain, next));
}

TEST_P(StateTest, RestoringACheckpointContinuesAsIfNothingHadFollowed) {
  auto a = state();
  feed(*a, 0, 70);
  const auto checkpoint = a->checkpoint();
  const auto next = std::span(ids_).subspan(70, 8);
  const auto before = step(*a, next);
  ASSERT_TRUE(a->commit(8).ok());
  feed(*a, 100, 60);
  ASSERT_TRUE(a->restore(checkpoint).ok());
  EXPECT_EQ(a->length(), 70);
  EXPECT_EQ(step(*a, next), before);
  a->rollback();

  auto other = state();
  feed(*other, 10, 80);
  EXPECT_EQ(other->restore(checkpoint).error().code, ErrorCode::kInvalidArgument);
  auto cut = checkpoint;
  cut.recurrent.pop_back();
  EXPECT_EQ(a->restore(cut).error().code, ErrorCode::kInvalidArgument);
  cut = checkpoint;
  cut.length = 5;
  EXPECT_EQ(a->restore(cut).error().code, ErrorCode::kInvalidArgument);
}

TEST_P(StateTest, ASavedStateContinuesInAnotherSequence) {
  auto a = state();
  feed(*a, 0, 130);
  const auto bytes = a->serialize();
  auto b = state();
  feed(*b, 20, 9);
  ASSERT_TRUE(b->deserialize(bytes).ok());
  const auto next = std::span(ids_).subspan(130, 6);
  EXPECT_EQ(step(*b, next), step(*a, next));
  a->rollback();
  b->rollback();
  EXPECT_EQ(draft(*b, 4), draft(*a, 4));

  auto cut = bytes;
  cut.pop_back();
  EXPECT_EQ(b->deserialize(cut).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(b->deserialize({}).error().code, ErrorCode::kCorrupt);
  auto small = state(100);
  EXPECT_EQ(small->deserialize(bytes).error().code, ErrorCode::kLimit);
  auto wild = bytes;
  std::memset(wild.data() + 24, 0x7f, 4);  // the first token
  EXPECT_EQ(b->deserialize(wild).error().code, ErrorCode::kCorrupt);
}

TEST_P(StateTest, SequencesInOneBatchDoNotSeeEachOther) {
  // Two that share a beginning, one that does not, of different lengths, in one step.
  auto a = state();
  auto b = state();
  auto c = state();
  feed(*a, 0, 40);
  feed(*b, 0, 40);
  feed(*c, 60, 75);
  const auto a_next = std::span(ids_).subspan(40, 3);
  const auto b_next = std::span(ids_).subspan(100, 2);
  const auto c_next = std::span(ids_).subspan(150, 4);
  std::vector<float> together(9 * 512);
  const std::vector<model::Segment> segments{{a.get(), a_next}, {b.get(), b_next}, {c.get(), c_next}};
  model::ForwardOptions options;
  options.logits = model::ForwardOptions::Logits::kAll;
  options.on_logits = [&](std::int64_t first, std::int64_t rows,
                          model::Dev<const float> data) -> Result<void> {
    loaded_.backend->download(
        std::as_writable_bytes(std::span(together))
            .subspan(static_cast<std::size_t>(first * 2048), static_cast<std::size_t>(rows * 2048)),
        model::Dev(reinterpret_cast<const std::byte*>(data.address())));
    return {};
  };
  ASSERT_TRUE(loaded_.model->forward(segments, options).ok());
  for (auto* s : {a.get(), b.get(), c.get()}) s->rollback();
  std::vector<float> apart;
  for (const auto& segment : segments) {
    const auto rows = step(*segment.state, segment.tokens);
    apart.insert(apart.end(), rows.begin(), rows.end());
  }
  EXPECT_EQ(together, apart);
}

TEST_P(StateTest, ABatchCommittedInPartContinuesAsEachSequenceWouldAlone) {
  // One new sequence among them: it has no MTP row for its first token.
  const std::size_t starts[] = {40, 0, 75};
  const std::size_t rows[] = {4, 3, 5};
  const std::size_t kept[] = {2, 3, 1};
  std::vector<std::unique_ptr<model::SequenceState>> batched;
  std::vector<std::unique_ptr<model::SequenceState>> alone;
  std::vector<model::Segment> segments;
  for (std::size_t i = 0; i < 3; ++i) {
    for (auto* list : {&batched, &alone}) {
      list->push_back(state());
      if (starts[i] > 0) feed(*list->back(), 0, starts[i]);
    }
    segments.push_back({batched.back().get(), std::span(ids_).subspan(starts[i], rows[i])});
  }
  std::vector<std::int64_t> mtp_rows;
  model::ForwardOptions options;
  options.on_mtp_logits = [&](std::int64_t row, std::int64_t count, model::Dev<const float>) -> Result<void> {
    for (std::int64_t r = 0; r < count; ++r) mtp_rows.push_back(row + r);
    return {};
  };
  ASSERT_TRUE(loaded_.model->forward(segments, options).ok());
  EXPECT_EQ(mtp_rows, (std::vector<std::int64_t>{0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11}));
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(batched[i]->commit(static_cast<std::int64_t>(kept[i])).ok());
    feed(*alone[i], starts[i], kept[i]);
    EXPECT_EQ(draft(*batched[i], 9), draft(*alone[i], 9)) << i;
    const auto next = std::span(ids_).subspan(starts[i] + kept[i], 6);
    EXPECT_EQ(step(*batched[i], next), step(*alone[i], next)) << i;
  }
}

TEST_P(StateTest, DraftsLeaveNoTraceInTheSequence) {
  for (const std::size_t prompt : {5U, 62U, 63U, 64U}) {
    auto plain = state();
    auto drafted = state();
    feed(*plain, 0, prompt);
    feed(*drafted, 0, prompt);
    const auto ignore = [](std::int64_t, std::int64_t, model::Dev<const float>) { return Result<void>(); };
    for (std::int64_t depth = 0; depth < 6; ++depth) {
      ASSERT_TRUE(loaded_.model->draft(*drafted, 7, depth, ignore).ok());
    }
    feed(*plain, prompt, 9);
    feed(*drafted, prompt, 9);
    EXPECT_EQ(draft(*drafted, 3), draft(*plain, 3));
    EXPECT_EQ(drafted->serialize(), plain->serialize());
  }
}

TEST_P(StateTest, DraftsThatCannotBeMadeAreRefused) {
  const auto ignore = [](std::int64_t, std::int64_t, model::Dev<const float>) { return Result<void>(); };
  const auto refused = [&](model::SequenceState& s, std::int32_t token, std::int64_t depth) {
    return !loaded_.model->draft(s, token, depth, ignore).ok();
  };
  auto a = state(10);
  EXPECT_TRUE(refused(*a, 1, 0));  // nothing to start from
  feed(*a, 0, 10);
  EXPECT_TRUE(refused(*a, 512, 0));
  EXPECT_TRUE(refused(*a, -1, 0));
  EXPECT_TRUE(refused(*a, 1, 1));   // the first must come first
  EXPECT_FALSE(refused(*a, 1, 0));  // the row of the last token fits at the very edge of the context
  EXPECT_TRUE(refused(*a, 1, 1));   // one further does not
  EXPECT_TRUE(refused(*a, 1, -1));
  auto b = state();
  step(*b, std::span(ids_).first(3));
  EXPECT_TRUE(refused(*b, 1, 0));  // a step is pending
}

TEST_P(StateTest, AStepThatFailsLeavesEverySequenceAsItWas) {
  auto a = state();
  auto b = state(45);
  feed(*a, 0, 40);
  feed(*b, 0, 40);
  const auto next = std::span(ids_).subspan(90, 5);
  const auto rows_of = [&](model::SequenceState& s) {
    auto rows = step(s, next);
    s.rollback();
    return rows;
  };
  const auto before_a = rows_of(*a);
  const auto before_b = rows_of(*b);
  const auto unchanged = [&] {
    EXPECT_EQ(a->pending(), 0);
    EXPECT_EQ(b->pending(), 0);
    EXPECT_EQ(rows_of(*a), before_a);
    EXPECT_EQ(rows_of(*b), before_b);
  };
  // The second does not fit its context.
  const std::vector<model::Segment> too_long{{a.get(), std::span(ids_).subspan(40, 20)},
                                             {b.get(), std::span(ids_).subspan(40, 6)}};
  EXPECT_EQ(loaded_.model->forward(too_long, {}).error().code, ErrorCode::kLimit);
  unchanged();
  // A receiver of results fails in the middle, or throws.
  const std::vector<model::Segment> fits{{a.get(), std::span(ids_).subspan(40, 20)},
                                         {b.get(), std::span(ids_).subspan(40, 3)}};
  model::ForwardOptions options;
  options.on_layer = [](std::int64_t layer, std::int64_t, model::Dev<const float>) -> Result<void> {
    if (layer == 3) return make_error(ErrorCode::kIo, "no");
    return {};
  };
  EXPECT_EQ(loaded_.model->forward(fits, options).error().code, ErrorCode::kIo);
  unchanged();
  options.on_layer = [](std::int64_t, std::int64_t, model::Dev<const float>) -> Result<void> {
    throw std::bad_alloc();
  };
  EXPECT_THROW((void)loaded_.model->forward(fits, options), std::bad_alloc);
  unchanged();
  // The same sequence twice.
  const std::vector<model::Segment> twice{{a.get(), std::span(ids_).first(2)},
                                          {a.get(), std::span(ids_).first(2)}};
  EXPECT_EQ(loaded_.model->forward(twice, {}).error().code, ErrorCode::kInvalidArgument);
  unchanged();
}

TEST_P(StateTest, AResetSequenceIsANewOne) {
  auto a = state();
  feed(*a, 30, 99);
  a->reset();
  auto b = state();
  const auto next = std::span(ids_).subspan(0, 40);
  EXPECT_EQ(step(*a, next), step(*b, next));
}

TEST_P(StateTest, ThePlannedCostIsWhatIsAllocated) {
  const auto options = [](std::int64_t context, std::int64_t rows = 8) {
    return model::StateOptions{.context = context, .step_rows = rows, .mtp = true, .kv = GetParam()};
  };
  const auto cost = model::SequenceState::cost(loaded_.model->config(), options(100));
  const auto other = model::SequenceState::cost(loaded_.model->config(), options(100, 4));
  EXPECT_LT(other.fixed, cost.fixed);
  // Keys, values, raw index keys and a block key for every four tokens, of two trunk layers and the MTP
  // layer.
  const std::uint64_t keys_and_values =
      GetParam() == model::KvFormat::kQ8 ? 2 * (128 + 128 / 32 * 2) : 2 * 128 * 4;
  EXPECT_EQ(cost.per_token, 3U * (keys_and_values + (32 + 8) * 4) + 4);
  for (const std::int64_t context : {1, 99, 100, 101}) {
    const std::uint64_t bytes = model::SequenceState::bytes(loaded_.model->config(), options(context));
    EXPECT_EQ(bytes, state(context)->allocated() + static_cast<std::uint64_t>(context) * 4);
    EXPECT_GE(cost.fixed + cost.per_token * static_cast<std::uint64_t>(context), bytes);
  }
}

TEST_P(StateTest, TheContextIsABoundNotACrash) {
  auto a = state(10);
  const model::Segment eleven{a.get(), std::span(ids_).first(11)};
  const auto result = loaded_.model->forward(std::span(&eleven, 1), {});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kLimit);
  EXPECT_NE(result.error().message.find("holds 10"), std::string::npos);
  feed(*a, 0, 10);
  const model::Segment one{a.get(), std::span(ids_).first(1)};
  EXPECT_FALSE(loaded_.model->forward(std::span(&one, 1), {}).ok());
  EXPECT_EQ(a->length(), 10);
}

TEST_P(StateTest, AStepOnADeviceThatFailsIsAnErrorAndLeavesNothing) {
  const auto on_device = test::load_model(kTiny, "emulated");
  ASSERT_NE(on_device.model, nullptr);
  const auto a = std::move(on_device.model->new_state(256)).value();
  std::byte there{};
  on_device.backend->upload(model::Dev<std::byte>(&there), std::span(&there, 1));  // nobody's address
  ASSERT_FALSE(on_device.backend->status().ok());
  const model::Segment segment{a.get(), std::span(ids_).first(10)};
  EXPECT_FALSE(on_device.model->forward(std::span(&segment, 1), {}).ok());
  EXPECT_EQ(a->length(), 0);
  EXPECT_EQ(a->pending(), 0);
}

TEST_P(StateTest, TokensOutOfRangeAreRefusedAndChangeNothing) {
  auto a = state();
  feed(*a, 0, 10);
  for (const std::int32_t bad : {-1, 512, INT32_MAX}) {
    const std::vector<std::int32_t> tokens{1, bad};
    const model::Segment segment{a.get(), tokens};
    const auto result = loaded_.model->forward(std::span(&segment, 1), {});
    ASSERT_FALSE(result.ok());
    EXPECT_NE(result.error().message.find(std::to_string(bad)), std::string::npos);
    EXPECT_EQ(a->length(), 10);
    EXPECT_EQ(a->pending(), 0);
  }
}

// Row 34b: a first token alone is a step like any other.
TEST_P(StateTest, AnyCutOfAPromptGivesTheSameBits) {
  auto whole = state();
  const auto expected = step(*whole, ids_);
  for (const std::size_t first : {std::size_t{1}, std::size_t{8}, std::size_t{65}}) {
    for (const std::size_t part : {std::size_t{1}, std::size_t{7}, std::size_t{64}}) {
      auto cut = state();
      std::vector<float> logits;
      for (std::size_t at = 0; at < ids_.size();) {
        const std::size_t count = std::min(at == 0 ? first : part, ids_.size() - at);
        const auto some = step(*cut, std::span(ids_).subspan(at, count));
        logits.insert(logits.end(), some.begin(), some.end());
        ASSERT_TRUE(cut->commit(static_cast<std::int64_t>(count)).ok());
        at += count;
      }
      EXPECT_EQ(logits, expected) << first << ", then " << part;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kv, StateTest, testing::Values(model::KvFormat::kF32, model::KvFormat::kQ8),
                         [](const auto& kv) { return kv.param == model::KvFormat::kQ8 ? "q8" : "f32"; });

// A state says what it is: one format's file is not another's.
TEST(KeysAndValues, OfEightBitsAreAnotherState) {
  std::vector<std::byte> saved;
  for (const auto kv : {model::KvFormat::kF32, model::KvFormat::kQ8}) {
    model::ModelOptions options;
    options.kv = kv;
    const auto loaded = test::load_model(kTiny, "cpu", options);
    ASSERT_NE(loaded.model, nullptr);
    auto state = std::move(loaded.model->new_state(16)).value();
    if (saved.empty()) {
      saved = state->serialize();
      ASSERT_TRUE(state->deserialize(saved).ok());
    } else {
      EXPECT_EQ(state->deserialize(saved).error().code, ErrorCode::kCorrupt);
    }
  }
}

TEST(KeysAndValues, OfEightBitsOnAGpuGiveTheSameBitsHoweverCut) {
  model::ModelOptions options;
  options.kv = model::KvFormat::kQ8;
  options.max_rows = 12;
  const auto loaded = test::load_model(kTiny, "emulated", options);
  ASSERT_NE(loaded.model, nullptr);
  const std::vector<std::int32_t> ids{5, 300, 2, 17, 44, 450, 9, 81, 2, 6, 7, 8};
  const auto logits_of = [&](std::size_t part) {
    auto state = std::move(loaded.model->new_state(16)).value();
    std::vector<float> last(512);
    for (std::size_t at = 0; at < ids.size(); at += part) {
      const model::Segment segment{state.get(), std::span(ids).subspan(at, part)};
      model::ForwardOptions forward;
      forward.on_logits = [&](std::int64_t, std::int64_t, model::Dev<const float> data) -> Result<void> {
        loaded.backend->download(std::as_writable_bytes(std::span(last)),
                                 model::Dev(reinterpret_cast<const std::byte*>(data.address())));
        return {};
      };
      EXPECT_TRUE(loaded.model->forward(std::span(&segment, 1), forward).ok());
      EXPECT_TRUE(state->commit(static_cast<std::int64_t>(part)).ok());
    }
    return last;
  };
  const auto whole = logits_of(12);
  EXPECT_NE(whole, std::vector<float>(512));
  EXPECT_EQ(logits_of(1), whole);
  EXPECT_EQ(logits_of(4), whole);
}

TEST(KeysAndValues, OfEightBitsNeedWholeGroups) {
  spec::ModelConfig config;
  config.head_dim = 48;
  EXPECT_TRUE(model::check_kv(config, model::KvFormat::kF32).ok());
  const auto refused = model::check_kv(config, model::KvFormat::kQ8);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message,
            "keys and values in 8 bits: heads of 48 numbers found, a multiple of 32 needed");
}

}  // namespace
}  // namespace sluice
