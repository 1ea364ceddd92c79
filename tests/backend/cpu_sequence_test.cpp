// DeltaNet, attention and selection of the CPU backend at the sizes of the released model.
#include <algorithm>
#include <limits>
#include <numeric>

#include "backend/cpu_on_target.h"

namespace sluice::backend {
namespace {

class CpuSequence : public OnTarget {};
SLUICE_ON_EVERY_TARGET(CpuSequence);

TEST_P(CpuSequence, DeltaGates) {
  Numbers numbers(1);
  const auto a = numbers.floats(3 * 48, -30, 30);
  const auto b = numbers.floats(3 * 48, -10, 10);
  const auto a_log = numbers.floats(48, -3, 2);
  const auto dt_bias = numbers.floats(48, -6, 1);
  for (const std::int64_t heads : {48, 5}) {
    const std::int64_t count = 3 * heads;
    check(2 * count, 3e-7, [&](Backend& on, std::vector<float>& out) {
      on.delta_gates(dev(a), dev(b), dev(a_log), dev(dt_bias), 3, heads, dev(out), dev(out) + count);
    });
  }
}

TEST_P(CpuSequence, DeltaScanInAnyChunks) {
  Numbers numbers(2);
  struct Case {
    DeltaShape shape;
    std::int64_t rows;
  };
  for (const auto& [shape, rows] : {Case{{16, 48, 128, 128}, 5}, Case{{2, 6, 64, 64}, 70},
                                    Case{{1, 2, 5, 7}, 9}, Case{{1, 3, 33, 90}, 3}}) {
    const std::int64_t width = 2 * shape.key_heads * shape.key_dim + shape.value_heads * shape.value_dim;
    const std::int64_t size = shape.value_heads * shape.key_dim * shape.value_dim;
    const std::int64_t y_row = shape.value_heads * shape.value_dim;
    const auto qkv = numbers.floats(rows * width);
    const auto decay = numbers.floats(rows * shape.value_heads, 0.3F, 1);
    const auto beta = numbers.floats(rows * shape.value_heads, 0, 1);
    const auto start = numbers.floats(size, -0.5F, 0.5F);
    // y, then the state that is left.
    const auto whole = check(rows * y_row + size, 5e-7, [&](Backend& b, std::vector<float>& out) {
      b.delta_scan(shape, dev(qkv), dev(decay), dev(beta), rows, dev(start), dev(out) + rows * y_row,
                   dev(out));
    });
    std::vector<float> pieces(whole.size());
    const Dev<float> state = dev(pieces) + rows * y_row;
    std::copy(start.begin(), start.end(), pieces.begin() + rows * y_row);
    for (std::int64_t at = 0, step = 1; at < rows; at += step, step = std::min(step + 1, rows - at)) {
      two_.delta_scan(shape, dev(qkv) + at * width, dev(decay) + at * shape.value_heads,
                      dev(beta) + at * shape.value_heads, step, state, state, dev(pieces) + at * y_row);
    }
    EXPECT_EQ(bits_of_values(pieces), bits_of_values(whole));
    std::vector<float> state_only(static_cast<std::size_t>(size));
    three_.delta_scan(shape, dev(qkv), dev(decay), dev(beta), rows, dev(start), dev(state_only), {});
    EXPECT_EQ(bits_of_values(state_only), bits_of_values(std::span(whole).last(state_only.size())));
  }
}

TEST_P(CpuSequence, AttentionOverListsAndPrefixes) {
  Numbers numbers(3);
  struct Case {
    AttentionShape shape;
    std::int64_t tokens, seen;
  };
  for (const auto& [shape, tokens, seen] :
       {Case{{24, 2, 256}, 2500, 2051}, Case{{4, 2, 128}, 700, 130}, Case{{3, 1, 20}, 100, 66},
        Case{{5, 5, 3}, 10, 1}, Case{{14, 2, 64}, 5000, 4999}}) {
    const auto q = numbers.floats(2 * shape.heads * shape.head_dim, -2, 2);
    const auto keys = numbers.floats(tokens * shape.kv_heads * shape.head_dim, -2, 2);
    const auto values = numbers.floats(tokens * shape.kv_heads * shape.head_dim);
    // Row 0 sees a prefix, row 1 a list.
    std::vector<std::uint32_t> all(static_cast<std::size_t>(tokens));
    std::iota(all.begin(), all.end(), 0U);
    for (std::size_t i = all.size(); i > 1; --i)
      std::swap(all[i - 1], all[numbers.below(static_cast<std::uint32_t>(i))]);
    std::sort(all.begin(), all.begin() + seen);
    std::vector<std::uint32_t> list(static_cast<std::size_t>(2 * seen), 0xffffffffU);
    std::copy_n(all.begin(), seen, list.begin() + seen);
    const std::vector<std::uint32_t> count(2, static_cast<std::uint32_t>(seen));
    const std::vector<std::uint8_t> dense{1, 0};
    const TokenSelection selection{dev(std::as_const(list)), seen, dev(count), dev(dense), seen};
    const std::int64_t out_row = shape.heads * shape.head_dim;
    const auto both = check(2 * out_row, 1e-6, [&](Backend& b, std::vector<float>& out) {
      b.attention(shape, dev(q), dev(keys), dev(values), selection, 2, dev(out));
    });
    // Alone, in the company of many, and a prefix given as a list: the same bits.
    std::vector<float> alone(static_cast<std::size_t>(out_row));
    const TokenSelection second{dev(std::as_const(list)) + seen, seen, dev(count), {}, seen};
    three_.attention(shape, dev(q) + out_row, dev(keys), dev(values), second, 1, dev(alone));
    EXPECT_EQ(bits_of_values(alone), bits_of_values(std::span(both).last(alone.size())));
    std::vector<float> many_q, many_out(static_cast<std::size_t>(33 * out_row));
    for (int r = 0; r < 33; ++r) many_q.insert(many_q.end(), q.begin(), q.begin() + out_row);
    std::vector<std::uint32_t> prefix(static_cast<std::size_t>(33 * seen));
    for (std::size_t i = 0; i < prefix.size(); ++i) {
      prefix[i] = static_cast<std::uint32_t>(i % static_cast<std::size_t>(seen));
    }
    const std::vector<std::uint32_t> many_count(33, static_cast<std::uint32_t>(seen));
    const TokenSelection as_list{dev(std::as_const(prefix)), seen, dev(many_count), {}, seen};
    two_.attention(shape, dev(std::as_const(many_q)), dev(keys), dev(values), as_list, 33, dev(many_out));
    for (const std::int64_t r : {0, 17, 32}) {
      EXPECT_EQ(
          bits_of_values(std::span(many_out).subspan(static_cast<std::size_t>(r * out_row), alone.size())),
          bits_of_values(std::span(both).first(alone.size())));
    }
  }
}

TEST_P(CpuSequence, AttentionOfRealSizeActivationsInEveryChunk) {
  // Queries and keys as norms with large weights leave them, at the released shape and beyond every change of
  // path: one row, a few, and a chunk of them.
  Numbers numbers(31);
  const AttentionShape shape{24, 2, 256};
  const std::int64_t rows = 65;
  const std::int64_t tokens = 1100;
  const std::int64_t q_row = shape.heads * shape.head_dim;
  const auto q = numbers.floats(rows * q_row, -12, 12);
  const auto keys = numbers.floats(tokens * 512, -12, 12);
  const auto values = numbers.floats(tokens * 512, -60, 60);
  std::vector<std::uint32_t> count;
  for (std::int64_t r = 0; r < rows; ++r) count.push_back(static_cast<std::uint32_t>(tokens - rows + r + 1));
  const std::vector<std::uint8_t> dense(static_cast<std::size_t>(rows), 1);
  const auto attend = [&](Backend& b, std::int64_t first, std::int64_t n, Dev<float> out) {
    b.attention(shape, dev(q) + first * q_row, dev(keys), dev(values),
                {{}, 0, dev(count) + first, dev(dense) + first, tokens}, n, out);
  };
  const auto whole =
      check(rows * q_row, 1e-5, [&](Backend& b, std::vector<float>& out) { attend(b, 0, rows, dev(out)); });
  for (const std::int64_t chunk : {1, 4, 64}) {
    std::vector<float> parts(whole.size());
    for (std::int64_t at = 0; at < rows; at += chunk) {
      attend(two_, at, std::min(chunk, rows - at), dev(parts) + at * q_row);
    }
    EXPECT_EQ(bits_of_values(parts), bits_of_values(whole)) << chunk;
  }
}

TEST_P(CpuSequence, AttentionWithNothingToSeeGivesZeros) {
  const auto q = Numbers(4).floats(2 * 8);
  const std::vector<std::uint32_t> count(2, 0);
  std::vector<float> out(16, 1);
  two_.attention({2, 1, 4}, dev(q), {}, {}, {{}, 0, dev(count), {}, 0}, 2, dev(out));
  EXPECT_EQ(out, std::vector<float>(16));
}

TEST_P(CpuSequence, AttentionToOneLargeScore) {
  // A score far above the others, met late: the running maximum must rescale what came before.
  Numbers numbers(5);
  const auto q = numbers.floats(64, 0.5F, 1);
  auto keys = numbers.floats(1000 * 64);
  const auto values = numbers.floats(1000 * 64);
  for (std::size_t i = 0; i < 64; ++i) keys[777 * 64 + i] = 10;
  const std::vector<std::uint32_t> count{1000};
  const std::vector<std::uint8_t> dense{1};
  check(64, 1e-6, [&](Backend& b, std::vector<float>& out) {
    b.attention({1, 1, 64}, dev(q), dev(std::as_const(keys)), dev(values),
                {{}, 0, dev(count), dev(dense), 1000}, 1, dev(out));
  });
}

TEST_P(CpuSequence, Indexer) {
  Numbers numbers(6);
  const IndexShape shape{4, 128, 4, 512};
  const std::int64_t blocks = 611;
  const auto raw = numbers.floats(blocks * 4 * 128);
  const auto w = numbers.floats(128);
  const auto cos = numbers.floats(blocks * 32);
  const auto sin = numbers.floats(blocks * 32);
  const auto keys = check(blocks * 128, 5e-7, [&](Backend& b, std::vector<float>& out) {
    b.index_block_keys(shape, dev(raw), 0, 7, dev(w), 1e-6F, {64, dev(cos), dev(sin)}, dev(out));
    b.index_block_keys(shape, dev(raw), 7, blocks, dev(w), 1e-6F, {64, dev(cos) + 7 * 32, dev(sin) + 7 * 32},
                       dev(out));
  });
  const auto q = numbers.floats(3 * 512);
  const std::vector<std::uint32_t> seen{0, 610, 333};
  const auto scores = check(3 * blocks, 1e-6, [&](Backend& b, std::vector<float>& out) {
    b.index_scores(shape, dev(q), dev(keys), dev(seen), 3, blocks, dev(out));
  });
  std::vector<float> alone(static_cast<std::size_t>(blocks));
  three_.index_scores(shape, dev(q) + 2 * 512, dev(keys), dev(seen) + 2, 1, blocks, dev(alone));
  EXPECT_EQ(bits_of_values(alone), bits_of_values(std::span(scores).last(alone.size())));
  const std::vector<std::uint32_t> one_block{1};
  check(1, 1e-6, [&](Backend& b, std::vector<float>& out) {
    b.index_scores({9, 7, 4, 2}, dev(q), dev(keys), dev(one_block), 1, 1, dev(out));
  });
}

/// Everything index_select writes, one after the other.
std::vector<std::uint32_t> select(Backend& b, IndexShape shape, const std::vector<float>& scores,
                                  std::int64_t stride, const std::vector<std::uint32_t>& visible) {
  const auto rows = static_cast<std::int64_t>(visible.size());
  const std::int64_t token_stride = shape.block_budget * shape.ratio + shape.ratio - 1;
  const std::int64_t words = (stride + 31) / 32 + 1;
  std::vector<std::uint32_t> tokens(static_cast<std::size_t>(rows * token_stride), 7), count(visible.size()),
      mask(static_cast<std::size_t>(rows * words), 7);
  std::vector<std::uint8_t> dense(visible.size(), 7);
  b.index_select(shape, dev(scores), stride, dev(visible), rows, dev(tokens), token_stride, dev(count),
                 dev(dense), dev(mask), words);
  tokens.insert(tokens.end(), count.begin(), count.end());
  tokens.insert(tokens.end(), mask.begin(), mask.end());
  for (const std::uint8_t d : dense) tokens.push_back(d);
  return tokens;
}

TEST_P(CpuSequence, SelectionIsExact) {
  Numbers numbers(7);
  const IndexShape shape{4, 128, 4, 512};
  const std::int64_t stride = 20000;
  const std::vector<std::uint32_t> visible{79999, 2047, 2051, 2052, 2055, 40001, 12345, 5000, 80000, 70000};
  auto scores = numbers.floats(stride * 10, -1, 3);
  // Few distinct values, mostly zero, all zero, and rows with NaN, infinities and both zeros.
  for (std::size_t i = 0; i < 20000; ++i) {
    scores[i] = static_cast<float>(static_cast<int>(scores[i] * 2));
    float& sparse = scores[5 * 20000 + i];
    sparse = sparse > 2.98F ? sparse : 0;
    scores[6 * 20000 + i] = 0;
    float& odd = scores[8 * 20000 + i];
    switch (numbers.below(8)) {
      case 0:
        odd = NAN;
        break;
      case 1:
        odd = -0.0F;
        break;
      case 2:
        odd = 0;
        break;
      case 3:
        odd = numbers.below(50) == 0 ? std::numeric_limits<float>::infinity() : -1;
        break;
      default:
        odd = -std::numeric_limits<float>::infinity();
    }
    scores[9 * 20000 + i] = i % 100 == 0 ? 1.0F : NAN;
  }
  const auto expected = select(reference_, shape, scores, stride, visible);
  for (auto* b : {&one_, &two_, &three_}) EXPECT_EQ(select(*b, shape, scores, stride, visible), expected);
  const IndexShape small{1, 4, 2, 3};
  const std::vector<std::uint32_t> few{0, 1, 6, 7, 8, 9, 63};
  const auto tiny = numbers.floats(7 * 40);
  EXPECT_EQ(select(two_, small, tiny, 40, few), select(reference_, small, tiny, 40, few));
}

TEST_P(CpuSequence, RouterAndArgmax) {
  Numbers numbers(8);
  struct Case {
    std::int64_t n, k;
  };
  for (const auto& [n, k] : {Case{512, 10}, Case{32, 4}, Case{40, 3}, Case{7, 7}, Case{3, 1}}) {
    auto logits = numbers.floats(4 * n, -5, 5);
    for (std::int64_t i = 0; i < n; ++i) {
      float& tied = logits[static_cast<std::size_t>(n + i)];
      tied = static_cast<float>(static_cast<int>(tied));
      float& odd = logits[static_cast<std::size_t>(2 * n + i)];
      odd = i % 3 == 0 ? NAN : i == 4 ? 1.0F : -std::numeric_limits<float>::infinity();
      logits[static_cast<std::size_t>(3 * n + i)] = NAN;
    }
    for (const bool renormalise : {true, false}) {
      const auto run = [&, experts = n, chosen = k](Backend& b, std::vector<float>& weight) {
        std::vector<std::uint32_t> index(static_cast<std::size_t>(4 * chosen));
        b.router_topk(dev(std::as_const(logits)), 4, experts, chosen, renormalise, dev(index), dev(weight));
        return index;
      };
      std::vector<float> weight(static_cast<std::size_t>(4 * k));
      const auto expected = run(reference_, weight);
      check(4 * k, 3e-7, [&](Backend& b, std::vector<float>& out) { EXPECT_EQ(run(b, out), expected); });
    }
    std::vector<std::int32_t> want(4), got(4);
    reference_.argmax_rows(dev(std::as_const(logits)), 4, n, dev(want));
    one_.argmax_rows(dev(std::as_const(logits)), 4, n, dev(got));
    EXPECT_EQ(got, want);
  }
  auto vocabulary = numbers.floats(2 * 248320);
  vocabulary[200000] = vocabulary[100001] = vocabulary[100000] = 2;
  std::vector<std::int32_t> index(2), reference(2);
  two_.argmax_rows(dev(std::as_const(vocabulary)), 2, 248320, dev(index));
  reference_.argmax_rows(dev(std::as_const(vocabulary)), 2, 248320, dev(reference));
  EXPECT_EQ(index, reference);
  EXPECT_EQ(index[0], 100000);
}

}  // namespace
}  // namespace sluice::backend
