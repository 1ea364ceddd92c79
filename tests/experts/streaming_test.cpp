// The promise of streaming: 500 greedy tokens are the same bits wherever the records are, whenever they come
// (faults 44, 46, 50), and a read that fails never becomes a wrong answer.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <latch>
#include <thread>

#include "base/checksum.h"
#include "base/direct_file.h"
#include "base/read_ring.h"
#include "decode/session.h"
#include "experts/pooled_experts.h"
#include "pack/pack.h"
#include "store/store_format.h"
#include "support/loaded_model.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr int kTokens = 500;

/// Greedy tokens, and the checksum of every step's logits.
struct Greedy {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint64_t> logits;
  friend bool operator==(const Greedy&, const Greedy&) = default;
};

Result<Greedy> decode_greedy(model::Model& model, std::span<const std::int32_t> prompt, int count) {
  SLUICE_ASSIGN(const auto session,
                decode::Session::create(model, static_cast<std::int64_t>(prompt.size()) + count));
  SLUICE_TRY(session->prefill(prompt));
  Greedy greedy;
  for (int i = 0; i < count; ++i) {
    const auto logits = session->logits();
    greedy.logits.push_back(checksum(std::as_bytes(logits)));
    greedy.tokens.push_back(
        static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    if (i + 1 < count) SLUICE_TRY(session->step(greedy.tokens.back()));
  }
  return greedy;
}

const experts::Pool& pool_of(const model::Model& model) {
  return dynamic_cast<const experts::PooledExperts&>(model.experts()).pool();
}

class Streaming : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const fs::path model = std::string_view(GetParam()) == "demo"
                               ? fs::path(SLUICE_MODELS) / "demo"
                               : fs::path(SLUICE_TEST_DATA) / "model" / GetParam();
    const auto source = store::open_checkpoint(model);
    ASSERT_TRUE(source.ok());
    ASSERT_TRUE(pack::pack(**source, store_, {.experts = {spec::Format::kQ4, spec::Format::kQ2}}).ok());
    slot_ = static_cast<std::uint64_t>(store::slot_bytes((*source)->record_layout()));
    const auto& config = (*source)->config();
    records_ = static_cast<std::uint64_t>(config.layer_count() * config.experts);
    for (std::int32_t i = 0; i < 40; ++i) {
      prompt_.push_back((i * 37 + 11) % static_cast<std::int32_t>(config.vocab));
    }
  }
  model::ModelOptions options(std::uint64_t slots, const model::StreamOptions& stream = {}) const {
    model::ModelOptions options;
    options.mtp = false;
    options.pool_bytes = slots * slot_;
    options.stream = stream;
    return options;
  }
  test::LoadedModel load(std::uint64_t slots, const model::StreamOptions& stream = {},
                         int threads = 1) const {
    return test::load_model(store_, "cpu", options(slots, stream), threads);
  }
  Greedy greedy(model::Model& model, int count = kTokens) const {
    auto result = decode_greedy(model, prompt_, count);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    return result.ok() ? std::move(result).value() : Greedy{};
  }
  test::TempFolder folder_;
  const fs::path store_ = folder_ / "store";
  std::uint64_t slot_ = 0, records_ = 0;
  std::vector<std::int32_t> prompt_;
};

TEST_P(Streaming, FiveHundredTokensAreTheSameBits) {
  const auto all = load(0);
  ASSERT_NE(all.model, nullptr);
  const Greedy wanted = greedy(*all.model);
  ASSERT_EQ(wanted.tokens.size(), std::size_t{kTokens});

  struct Case {
    const char* name;
    std::uint64_t slots;
    int threads;
    model::StreamOptions stream;
  };
  const Case cases[] = {
      {"least", 2, 1, {}},
      {"least, threads read, no lookahead", 2, 2, {.ring = false, .lookahead = false}},
      {"a tenth", records_ / 10, 2, {}},
      {"a tenth, cold, heat is kept", records_ / 10, 1, {.keep_heat = true}},
      {"a tenth, warm", records_ / 10, 1, {.keep_heat = true}},
      {"a tenth, threads read", records_ / 10, 1, {.ring = false}},
      {"a quarter, no lookahead", records_ / 4, 2, {.lookahead = false}},
      {"half, threads read, warm", records_ / 2, 2, {.ring = false, .keep_heat = true}},
      {"all in the pool", records_, 1, {}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.name);
    const auto loaded = load(std::max<std::uint64_t>(one.slots, 2), one.stream, one.threads);
    ASSERT_NE(loaded.model, nullptr);
    const Greedy found = greedy(*loaded.model);
    EXPECT_EQ(found.tokens, wanted.tokens);
    EXPECT_EQ(found.logits, wanted.logits);
    EXPECT_EQ(pool_of(*loaded.model).leased(), 0U);
  }
  EXPECT_TRUE(fs::exists(store_ / "heat"));
}

TEST_P(Streaming, APromptOfOneTokenIsTheSameBitsWhereRecordsChangeTheirPlaces) {
  const auto all = load(0);
  const auto pooled = load(2);
  ASSERT_TRUE(all.model && pooled.model);
  // Slots are given away between and within the runs: nothing may keep an address of what was there.
  for (const std::int32_t token : {0, 7, 300}) {
    prompt_ = {token};
    EXPECT_EQ(greedy(*pooled.model, 20), greedy(*all.model, 20)) << token;
  }
}

TEST_P(Streaming, WhatIsForeseenIsMissedLessOften) {
  const auto without = load(records_ / 4, {.lookahead = false});
  const auto with = load(records_ / 4);
  ASSERT_TRUE(without.model && with.model);
  EXPECT_EQ(greedy(*with.model, 100), greedy(*without.model, 100));
  const auto counts = with.model->expert_counts();
  EXPECT_EQ(without.model->expert_counts().ahead, 0U);
  EXPECT_GT(counts.ahead_useful + counts.ahead_late, 0U);
  EXPECT_LT(counts.misses, without.model->expert_counts().misses);
}

TEST_P(Streaming, AWarmStartReadsLess) {
  const std::uint64_t slots = records_ / 2;
  std::uint64_t misses[2];
  for (std::uint64_t& one : misses) {
    const auto loaded = load(slots, {.lookahead = false, .keep_heat = true});
    ASSERT_NE(loaded.model, nullptr);
    // The reads at the start are over before anything is wanted.
    while (pool_of(*loaded.model).reader().counts().reads <
           pool_of(*loaded.model).counts().bytes_read / slot_) {
      std::this_thread::yield();
    }
    (void)greedy(*loaded.model, 30);
    one = loaded.model->expert_counts().misses;
  }
  EXPECT_LT(misses[1], misses[0]);
}

TEST_P(Streaming, AShrinkingPoolChangesNothingAndStaysSmall) {
  const auto all = load(0);
  const Greedy wanted = greedy(*all.model, 200);
  std::atomic<std::uint64_t> give_back = 0;
  std::vector<std::string> notices;
  model::StreamOptions stream;
  stream.pressure = [&] { return give_back.exchange(0); };
  stream.least_slots = 4;
  stream.on_notice = [&](const std::string& text) { notices.push_back(text); };
  const auto loaded = load(records_ / 2, stream);
  ASSERT_NE(loaded.model, nullptr);
  EXPECT_EQ(greedy(*loaded.model, 200), wanted);
  EXPECT_TRUE(notices.empty());
  give_back = slot_ * (records_ / 4);
  EXPECT_EQ(greedy(*loaded.model, 200), wanted);
  EXPECT_EQ(loaded.model->expert_bytes(), slot_ * (records_ / 2 - records_ / 4));
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_NE(notices[0].find("expert pool reduced from"), std::string::npos) << notices[0];
  give_back = ~std::uint64_t{0};
  EXPECT_EQ(greedy(*loaded.model, 200), wanted);
  EXPECT_EQ(loaded.model->expert_bytes(), slot_ * 4);  // never below the least
}

/// Stands between the engine and its records.
struct Faults {
  std::atomic<int> until{-1};  // reads left before the fault; below 0: none
  std::atomic<int> times{0};   // how often it strikes then
  std::atomic<int> seen{0};
  std::function<Result<void>(std::int64_t id, std::span<std::byte> slot)> strike;

  bool due() {
    if (until < 0) return false;
    if (until > 0) {
      --until;
      return false;
    }
    if (times == 0) return false;
    --times;
    ++seen;
    return true;
  }
  std::function<experts::SlotSource(experts::SlotSource)> wrapper() {
    return [this](experts::SlotSource source) {
      auto read = source.read;
      source.read = [this, read](std::int64_t id, std::span<std::byte> slot) -> Result<void> {
        if (due()) return strike(id, slot);
        return read(id, slot);
      };
      return source;
    };
  }
};

TEST_P(Streaming, FaultsFailTheRequestWithTheRecordsNameOrPass) {
  const auto all = load(0);
  const Greedy wanted = greedy(*all.model, 60);
  Faults faults;
  // Threads read, so that every read passes the wrapper; the ring hands its failures to the same code.
  model::StreamOptions stream;
  stream.ring = false;
  stream.reader.threads = 1;
  stream.reader.retries = 2;
  stream.lookahead = false;
  stream.wrap = faults.wrapper();
  const auto loaded = load(records_ / 8, stream);
  ASSERT_NE(loaded.model, nullptr);
  const auto named = [](std::int64_t id, const char* what) {
    return make_error(ErrorCode::kIo, "experts.q4.bin: record {}: {}", id, what);
  };
  struct Kind {
    const char* name;
    std::function<Result<void>(std::int64_t, std::span<std::byte>)> strike;
  };
  const Kind kinds[] = {
      {"input/output error",
       [&](std::int64_t id, std::span<std::byte>) { return named(id, "input/output error"); }},
      {"half of it, then nothing",
       [&](std::int64_t id, std::span<std::byte> slot) {
         std::fill(slot.begin(), slot.begin() + static_cast<std::ptrdiff_t>(slot.size() / 2),
                   std::byte{0x55});
         return named(id, "short read");
       }},
      {"wrong bytes that the checksum finds",
       [&](std::int64_t id, std::span<std::byte> slot) {
         std::fill(slot.begin(), slot.end(), std::byte{0x55});
         return named(id, "checksum");
       }},
      {"no memory", [](std::int64_t, std::span<std::byte>) -> Result<void> { throw std::bad_alloc(); }},
  };
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(kind.name);
    faults.strike = kind.strike;
    for (const int nth : {0, 7, 40}) {
      // Two failures pass unseen: the third attempt succeeds.
      faults.seen = 0;
      faults.times = 2;
      faults.until = nth;
      EXPECT_EQ(greedy(*loaded.model, 60), wanted);
      EXPECT_EQ(faults.seen, 2);
      // Three do not: the request fails, the next one is right.
      faults.times = 3;
      faults.until = nth;
      const auto failed = decode_greedy(*loaded.model, prompt_, 60);
      ASSERT_FALSE(failed.ok());
      EXPECT_NE(failed.error().message.find("record"), std::string::npos) << failed.error().message;
      EXPECT_EQ(pool_of(*loaded.model).leased(), 0U);
      faults.until = -1;
      EXPECT_EQ(greedy(*loaded.model, 60), wanted);
      EXPECT_EQ(pool_of(*loaded.model).leased(), 0U);
    }
  }
}

TEST_P(Streaming, ReadsThatTakeLongChangeNothing) {
  const auto all = load(0);
  const Greedy wanted = greedy(*all.model, 20);
  std::latch others(12);
  std::atomic<int> reads = 0;
  model::StreamOptions stream;
  stream.ring = false;
  stream.reader.threads = 6;
  stream.wrap = [&](experts::SlotSource source) {
    auto read = source.read;
    source.read = [&, read](std::int64_t id, std::span<std::byte> slot) {
      // The first comes after the next twelve.
      if (const int n = ++reads; n == 1) {
        others.wait();
      } else if (n <= 13) {
        others.count_down();
      }
      return read(id, slot);
    };
    return source;
  };
  const auto loaded = load(records_ / 2, stream);
  ASSERT_NE(loaded.model, nullptr);
  EXPECT_EQ(greedy(*loaded.model, 20), wanted);
}

TEST_P(Streaming, AStoreCutShortUnderARunIsAnError) {
  const auto all = load(0);
  const Greedy wanted = greedy(*all.model, 20);
  for (const bool ring : {true, false}) {
    const auto loaded = load(4, {.ring = ring});
    ASSERT_NE(loaded.model, nullptr);
    EXPECT_EQ(greedy(*loaded.model, 20), wanted);
    const fs::path file = store_ / "experts.q4.bin";
    const auto bytes = fs::file_size(file);
    fs::copy_file(file, folder_ / "whole", fs::copy_options::overwrite_existing);
    fs::resize_file(file, bytes / 2);
    const auto failed = decode_greedy(*loaded.model, prompt_, 20);
    ASSERT_FALSE(failed.ok());
    EXPECT_NE(failed.error().message.find("experts.q4.bin"), std::string::npos) << failed.error().message;
    EXPECT_EQ(pool_of(*loaded.model).leased(), 0U);
    // Mended in place, it serves again.
    fs::copy_file(folder_ / "whole", file, fs::copy_options::overwrite_existing);
    EXPECT_EQ(greedy(*loaded.model, 20), wanted);
  }
}

// Fault 54: a mapping of the files would let the kernel decide what is in memory.
TEST_P(Streaming, NothingOfTheStoreIsMapped) {
  const auto loaded = load(records_ / 4);
  ASSERT_NE(loaded.model, nullptr);
  (void)greedy(*loaded.model, 20);
  std::ifstream maps("/proc/self/maps");
  if (!maps) GTEST_SKIP() << "no /proc/self/maps here";
  for (std::string line; std::getline(maps, line);) {
    EXPECT_EQ(line.find(store_.string()), std::string::npos) << line;
  }
}

// Faults 51 and 52: what a file system refuses is read another way, and the way in use is told.
TEST_P(Streaming, AStoreInMemoryFilesGivesTheSameBits) {
  std::string pattern = "/dev/shm/sluice-test-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) GTEST_SKIP() << "no /dev/shm here";
  const struct Folder {
    fs::path path;
    ~Folder() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  } folder{pattern};
  const auto all = load(0);
  const Greedy wanted = greedy(*all.model, 40);
  fs::copy(store_, folder.path / "store");
  for (const bool ring : {true, false}) {
    const auto loaded = test::load_model(folder.path / "store", "cpu", options(records_ / 6, {.ring = ring}));
    ASSERT_NE(loaded.model, nullptr);
    EXPECT_EQ(greedy(*loaded.model, 40), wanted);
    const auto file = DirectFile::open(folder.path / "store" / "experts.q4.bin");
    ASSERT_TRUE(file.ok());
    const bool by_ring = ring && (*file)->is_direct() && open_read_ring(4).ok();
    EXPECT_EQ(loaded.model->experts().reader(), by_ring ? "io_uring" : "threads");
  }
}

TEST_P(Streaming, TheOptionsThatChangeResultsSayWhatTheyDid) {
  const auto plain = load(records_ / 8);
  const Greedy wanted = greedy(*plain.model, 100);
  EXPECT_EQ(plain.model->expert_counts().low_tier, 0U);
  EXPECT_EQ(plain.model->expert_counts().dropped, 0U);

  model::StreamOptions low;
  low.miss_tier = 1;
  const auto loaded_low = load(records_ / 8, low);
  ASSERT_NE(loaded_low.model, nullptr);
  EXPECT_EQ(greedy(*loaded_low.model, 100).tokens.size(), 100U);
  EXPECT_GT(loaded_low.model->expert_counts().low_tier, 0U);
  EXPECT_EQ(pool_of(*loaded_low.model).leased(), 0U);

  model::StreamOptions cut;
  cut.cut_weak = 2;  // above every weight: nothing that is not there is ever read by a decode step
  cut.lookahead = false;
  const auto loaded_cut = load(records_ / 8, cut);
  ASSERT_NE(loaded_cut.model, nullptr);
  (void)greedy(*loaded_cut.model, 1);  // the prompt's records
  const auto before = loaded_cut.model->expert_counts();
  (void)greedy(*loaded_cut.model, 100);
  const auto after = loaded_cut.model->expert_counts();
  EXPECT_GT(after.dropped, before.dropped);
  EXPECT_EQ(pool_of(*loaded_cut.model).leased(), 0U);

  // A threshold that nothing falls below changes nothing.
  model::StreamOptions none;
  none.cut_weak = 1e-30F;
  const auto loaded_none = load(records_ / 8, none);
  EXPECT_EQ(greedy(*loaded_none.model, 100), wanted);
}

INSTANTIATE_TEST_SUITE_P(Models, Streaming, testing::Values("demo", "tiny4"),
                         [](const auto& model) { return std::string(model.param); });

}  // namespace
}  // namespace sluice
