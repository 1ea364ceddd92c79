// The token selector of sparse attention (operations.md): keys of blocks, their scores, the choice.
#pragma once

#include "dialect.h"
#include "split.h"

#define SLUICE_SELECT_KERNELS(X) \
  X(index_block_keys)            \
  X(index_scores)                \
  X(index_scores_any)            \
  X(index_select)

namespace sluice::kernels {

constexpr u32 kIndexThreads = 256;
constexpr u32 kIndexSimds = kIndexThreads / 32;

struct IndexBlockKeysArgs {
  Global<const f32> raw_keys;  // [tokens][dim]
  Global<const f32> w;         // [dim]
  Global<const f32> cos, sin;  // [blocks from `first` on][half]
  Global<f32> block_keys;      // [blocks][dim]
  i64 first, last, dim, ratio, half;
  f32 eps;
};
/// The mean of element i over a block's tokens, the first of which lies at `at`.
DEVICE_FUNCTION f32 mean_of(Global<const f32> raw_keys, i64 at, i64 dim, i64 ratio) {
  f32 sum = 0;
  for (i64 token = 0; token < ratio; ++token) sum += raw_keys[at + token * dim];
  return sum / static_cast<f32>(ratio);
}
/// A SIMD group a block.
KERNEL(index_block_keys, IndexBlockKeysArgs, kIndexThreads) {
  KERNEL_THREAD(t);
  const i64 block = args.first + static_cast<i64>(t.group_x) * kIndexSimds + t.simd;
  if (block >= args.last) return;
  const i64 dim = args.dim;
  const i64 from = block * args.ratio * dim;
  f32 squares = 0;
  for (i64 i = t.lane; i < dim; i += 32) {
    const f32 x = mean_of(args.raw_keys, from + i, dim, args.ratio);
    squares = fma_f32(x, x, squares);
  }
  const f32 norm = 1 / sqrt_f32(simd_sum(t, squares) / static_cast<f32>(dim) + args.eps);
  for (i64 i = t.lane; i < dim; i += 32) {
    f32 x = mean_of(args.raw_keys, from + i, dim, args.ratio) * norm * args.w[i];
    if (i < 2 * args.half) {
      // The other of the pair is made again: it may be another lane's.
      const bool low = i < args.half;
      const i64 other = low ? i + args.half : i - args.half;
      const f32 y = mean_of(args.raw_keys, from + other, dim, args.ratio) * norm * args.w[other];
      const i64 angle = (block - args.first) * args.half + (low ? i : other);
      const f32 turned = y * args.sin[angle];
      x = fma_f32(x, args.cos[angle], low ? -turned : turned);
    }
    args.block_keys[block * dim + i] = x;
  }
}

constexpr u32 kIndexDim = 128;    // of index_scores, at most
constexpr u32 kIndexBlocks = 64;  // of a group: 8 for each SIMD group
constexpr u32 kIndexTiles = 2;    // of 16 query heads, staged together
constexpr u32 kIndexSteps = kIndexDim / 16;

struct IndexScoresArgs {
  Global<const f32> q;           // [rows][heads][dim]
  Global<const f32> block_keys;  // [blocks][dim]
  Global<const u32> blocks;      // [rows]
  Global<f32> scores;            // [rows][stride]
  i64 rows, stride, heads, dim;
  i64 rows_each;  // of a group; a multiple of kIndexTiles * 16 / heads
  f32 scale;
};
DEVICE_FUNCTION f32 relu(f32 x) {
  return x < 0 ? 0 : x;  // NaN stays, and then ranks last
}
/// For 1, 2, 4, 8 or 16 heads of at most 128. Groups (parts of the blocks, parts of the rows).
KERNEL_RESIDENT(index_scores, IndexScoresArgs, kIndexThreads, 2) {
  KERNEL_THREAD(t);
  SHARED(u32, queries, kIndexTiles * kParts * kIndexSteps * 32 * 4);
  const i64 dim = args.dim;
  const u32 heads = static_cast<u32>(args.heads);
  const i64 first = static_cast<i64>(t.group_y) * args.rows_each;
  const i64 last = min_of<i64>(args.rows, first + args.rows_each);
  u32 most = 0;  // blocks that any of the rows sees
  for (i64 row = first + t.lane; row < last; row += 32) most = max_of<u32>(most, args.blocks[row]);
  for (u32 mask = 16; mask > 0; mask /= 2) most = max_of(most, simd_shuffle_xor(t, most, mask));

  const i64 simd_block = static_cast<i64>(t.group_x) * kIndexBlocks + 8 * t.simd;
  const i64 own_block = simd_block + t.lane / 4;
  f32x4 key[kIndexSteps];
  UNROLL
  for (u32 i = 0; i < kIndexSteps; ++i) {
    key[i] = f32x4{0, 0, 0, 0};
    if (own_block < most) key[i] = four_of(args.block_keys, own_block * dim, 16 * i + 4 * (t.lane % 4), dim);
  }
  SplitB split[kIndexSteps];
  UNROLL
  for (u32 i = 0; i < kIndexSteps; ++i) split[i] = split_b(key[i].x, key[i].y, key[i].z, key[i].w);

  const u32 tile_rows = 16 / heads;
  for (i64 row = first; row < last; row += kIndexTiles * tile_rows) {
    barrier(t);
    for (u32 slot = t.index; slot < kIndexTiles * kIndexSteps * 32; slot += kIndexThreads) {
      const u32 tile = slot / (kIndexSteps * 32);
      const u32 in_tile = slot % (kIndexSteps * 32);
      const i64 d = in_tile / 32 * 16 + 4 * (slot % 4);
      const i64 vector = row * heads + tile * 16 + slot % 32 / 4;
      f32x4 q[2];
      UNROLL
      for (u32 i = 0; i < 2; ++i) {
        q[i] = f32x4{0, 0, 0, 0};
        if (vector + 8 * i < last * heads) q[i] = four_of(args.q, (vector + 8 * i) * dim, d, dim);
      }
      store_split_a(queries, tile * kParts * kIndexSteps * 32 + in_tile, kIndexSteps * 32, q[0], q[1]);
    }
    barrier(t);
    for (u32 tile = 0; tile < kIndexTiles; ++tile) {
      const i64 tile_row = row + tile * tile_rows;
      if (tile_row >= last) break;
      SplitSum sum = no_split_sum();
      if (simd_block < most) {
        UNROLL
        for (u32 i = 0; i < kIndexSteps; ++i) {
          if (16 * i < dim) {
            const SplitA a =
                load_split_a(queries, (tile * kParts * kIndexSteps + i) * 32 + t.lane, kIndexSteps * 32);
            sum = mma_split_sum(t, sum, a, split[i]);
          }
        }
      }
      f32 score[4];
      UNROLL
      for (u32 i = 0; i < 4; ++i) {
        score[i] = relu(total_of(sum, i));
        // Over the heads of a row: neighbouring rows of the tile.
        for (u32 mask = 1; mask < heads && mask < 8; mask *= 2) {
          score[i] += simd_shuffle_xor(t, score[i], 4 * mask);
        }
      }
      if (heads == 16) {
        score[0] += score[2];
        score[1] += score[3];
      }
      UNROLL
      for (u32 i = 0; i < 4; ++i) {
        const u32 head = t.lane / 4 + i / 2 * 8;
        const i64 to_row = tile_row + head / heads;
        const i64 block = simd_block + 2 * (t.lane % 4) + i % 2;
        if (head % heads == 0 && to_row < last && block < args.stride) {
          args.scores[to_row * args.stride + block] = block < args.blocks[to_row] ? score[i] * args.scale : 0;
        }
      }
    }
  }
}

/// For any shape: a SIMD group a score. Groups (blocks, rows).
KERNEL(index_scores_any, IndexScoresArgs, kIndexThreads) {
  KERNEL_THREAD(t);
  const i64 row = t.group_y;
  const i64 block = static_cast<i64>(t.group_x) * kIndexSimds + t.simd;
  if (block >= args.stride) return;
  f32 score = 0;
  if (block < args.blocks[row]) {
    for (i64 head = 0; head < args.heads; ++head) {
      f32 dot = 0;
      for (i64 i = t.lane; i < args.dim; i += 32) {
        dot = fma_f32(args.q[(row * args.heads + head) * args.dim + i], args.block_keys[block * args.dim + i],
                      dot);
      }
      score += relu(simd_sum(t, dot));
    }
  }
  if (t.lane == 0) args.scores[row * args.stride + block] = score * args.scale;
}

constexpr u32 kSelectThreads = 1024;
constexpr u32 kSelectSimds = kSelectThreads / 32;
constexpr u32 kSelectBins = 2 * kSelectThreads;

struct IndexSelectArgs {
  Global<const f32> scores;   // [rows][score_stride]
  Global<const u32> visible;  // [rows]
  Global<u32> tokens;         // [rows][token_stride]
  Global<u32> count;          // [rows]
  Global<u8> dense;           // [rows]
  Global<u32> mask;           // [rows][mask_words] or null
  i64 score_stride, token_stride, mask_words;
  u32 ratio, budget;
};

/// The sum over the lanes before this one.
DEVICE_FUNCTION u32 simd_sum_before(const Thread& t, u32 x) {
  u32 sum = x;
  for (u32 distance = 1; distance < 32; distance *= 2) {
    const u32 other = simd_shuffle(t, sum, t.lane - distance);
    if (t.lane >= distance) sum += other;
  }
  return sum - x;
}
/// Sums of `each` [kSelectSimds] over the SIMD groups before this one, and over all.
struct GroupSums {
  u32 before, all;
};
DEVICE_FUNCTION GroupSums group_sums(const Thread& t, Shared<u32> each) {
  const u32 own = each[t.lane];
  u32 before = t.lane < t.simd ? own : 0;
  u32 all = own;
  for (u32 mask = 16; mask > 0; mask /= 2) {
    before += simd_shuffle_xor(t, before, mask);
    all += simd_shuffle_xor(t, all, mask);
  }
  return {before, all};
}

/// A group a row. The key of the last block chosen is found in three steps of its bits, highest first: a
/// histogram, then the bin that holds it. Larger keys are chosen, and of its equals the lowest.
KERNEL(index_select, IndexSelectArgs, kSelectThreads) {
  KERNEL_THREAD(t);
  SHARED(u32, bins, kSelectBins);
  SHARED(u32, each, kSelectSimds);
  SHARED(u32, found, 2);
  constexpr u32 kBatch = 8;  // loads in flight
  const i64 row = t.group_x;
  const u32 seen = args.visible[row];
  const u32 complete = seen / args.ratio;
  const u32 words = (complete + 31) / 32;
  const i64 mask_row = row * args.mask_words;
  const bool masked = !(args.mask == nullptr);
  if (complete <= args.budget) {
    if (t.index == 0) {
      args.dense[row] = 1;
      args.count[row] = seen;
    }
    for (u32 word = t.index; masked && word < args.mask_words; word += kSelectThreads) {
      u32 bits = word < words ? 0xffffffffU : 0;
      if (word + 1 == words && complete % 32 != 0) bits = (1U << (complete % 32)) - 1;
      args.mask[mask_row + word] = bits;
    }
    return;
  }

  const Global<const f32> scores = args.scores + row * args.score_stride;
  u32 need = args.budget;  // of the keys that begin as `key` does
  u32 key = 0;
  u32 known = 0;  // bits of it
  for (u32 step = 0; step < 3; ++step) {
    const u32 shift = step == 0 ? 21 : step == 1 ? 10 : 0;
    const u32 width = step == 2 ? 1024 : kSelectBins;
    bins[t.index] = 0;
    bins[t.index + kSelectThreads] = 0;
    barrier(t);
    for (u32 first = t.index; first < complete; first += kBatch * kSelectThreads) {
      f32 score[kBatch];
      UNROLL
      for (u32 i = 0; i < kBatch; ++i) {
        const u32 block = first + i * kSelectThreads;
        score[i] = block < complete ? f32(scores[block]) : 0;
      }
      UNROLL
      for (u32 i = 0; i < kBatch; ++i) {
        const u32 now = order_key(score[i]);
        if (first + i * kSelectThreads < complete && (now & known) == key) {
          shared_atomic_add(bins + (now >> shift & (width - 1)), 1);
        }
      }
    }
    barrier(t);
    // Two bins a thread, the largest first.
    const u32 bin = kSelectBins - 1 - 2 * t.index;
    const u32 upper = bins[bin];
    const u32 lower = bins[bin - 1];
    const u32 before_lane = simd_sum_before(t, upper + lower);
    if (t.lane == 31) each[t.simd] = before_lane + upper + lower;
    barrier(t);
    const u32 before = group_sums(t, each).before + before_lane;
    if (before < need && need <= before + upper + lower) {
      const bool in_upper = need <= before + upper;
      found[0] = in_upper ? bin : bin - 1;
      found[1] = in_upper ? before : before + upper;
    }
    barrier(t);
    key |= found[0] << shift;
    need -= found[1];
    known |= (width - 1) << shift;
  }

  u32 larger_before = 0;
  u32 equal_before = 0;
  for (u32 first_word = 0; first_word < words; first_word += kSelectThreads) {
    // A lane keeps one word of 32 blocks, a SIMD group words that follow each other.
    const u32 round = min_of(words - first_word, kSelectThreads);
    const u32 simd_words = (round + kSelectSimds - 1) / kSelectSimds;
    const u32 from = min_of(t.simd * simd_words, round);
    const u32 held = min_of(round - from, simd_words);
    u32 larger = 0;
    u32 equal = 0;
    for (u32 first = 0; first < held; first += kBatch) {
      f32 score[kBatch];
      UNROLL
      for (u32 i = 0; i < kBatch; ++i) {
        const u32 block = (first_word + from + first + i) * 32 + t.lane;
        score[i] = first + i < held && block < complete ? f32(scores[block]) : 0;
      }
      UNROLL
      for (u32 i = 0; i < kBatch; ++i) {
        const u32 block = (first_word + from + first + i) * 32 + t.lane;
        const bool is = first + i < held && block < complete;
        const u32 now = order_key(score[i]);
        const u32 larger_bits = simd_ballot(t, is && now > key);
        const u32 equal_bits = simd_ballot(t, is && now == key);
        if (t.lane == first + i) {
          larger = larger_bits;
          equal = equal_bits;
        }
      }
    }
    // Both counts in one number: a round has 32,768 blocks at most.
    const u32 own = count_bits(larger) | count_bits(equal) << 16;
    const u32 before_lane = simd_sum_before(t, own);
    barrier(t);
    if (t.lane == 31) each[t.simd] = before_lane + own;
    barrier(t);
    const GroupSums sums = group_sums(t, each);
    const u32 before = sums.before + before_lane;
    const u32 equal_rank = equal_before + (before >> 16);
    u32 place = larger_before + (before & 0xffffU) + min_of(need, equal_rank);
    u32 chosen = larger;
    for (u32 rank = equal_rank; rank < need && equal != 0; ++rank) {
      const u32 lowest = equal & (0 - equal);
      chosen |= lowest;
      equal ^= lowest;
    }
    if (t.lane < held) {
      const u32 word = first_word + from + t.lane;
      if (masked && word < args.mask_words) args.mask[mask_row + word] = chosen;
      while (chosen != 0) {
        const u32 lowest = chosen & (0 - chosen);
        chosen ^= lowest;
        const u32 token = (word * 32 + count_bits(lowest - 1)) * args.ratio;
        for (u32 i = 0; i < args.ratio; ++i) {
          const i64 to = static_cast<i64>(place) * args.ratio + i;
          if (to < args.token_stride) args.tokens[row * args.token_stride + to] = token + i;
        }
        ++place;
      }
    }
    larger_before += sums.all & 0xffffU;
    equal_before += sums.all >> 16;
  }

  for (i64 word = words + t.index; masked && word < args.mask_words; word += kSelectThreads) {
    args.mask[mask_row + word] = 0;
  }
  const i64 listed = static_cast<i64>(args.budget) * args.ratio;
  const u32 tail = complete * args.ratio;  // its first token
  const i64 end = listed + (seen - tail);
  for (i64 to = listed + t.index; to < args.token_stride; to += kSelectThreads) {
    args.tokens[row * args.token_stride + to] = to < end ? tail + static_cast<u32>(to - listed) : 0xffffffffU;
  }
  if (t.index == 0) {
    args.dense[row] = 0;
    args.count[row] = static_cast<u32>(min_of<i64>(end, args.token_stride));
  }
}

}  // namespace sluice::kernels
