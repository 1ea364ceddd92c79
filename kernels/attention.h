// Attention over selected tokens (operations.md).
//
// A row's tokens are cut into pieces by their place in its list, pieces into sections. A piece is attended to
// on its own, then pieces are folded into their section and sections into the row, in ascending order: bits
// depend on the row's count alone, whether one group takes a piece, a section or the whole row.
#pragma once

#include "dialect.h"
#include "split.h"

#define SLUICE_ATTENTION_KERNELS(X) \
  X(attention_256)                  \
  X(attention_any)                  \
  X(attention_q8)                   \
  X(attention_merge)                \
  X(softmax_selected)

namespace sluice::kernels {

constexpr u32 kAttentionThreads = 256;
constexpr u32 kAttentionSimds = kAttentionThreads / 32;
constexpr u32 kPieceTokens = 64;  // 8 for each SIMD group
constexpr u32 kSectionPieces = 8;
constexpr u32 kHeadTile = 16;       // query heads that a group takes together: the rows of a matrix unit
constexpr u32 kAttentionDim = 256;  // at most; a SIMD group has 32 of them
constexpr u32 kQueryWords = kParts * kAttentionDim / 16 * 32 * 4;
constexpr u32 kWeightWords = kParts * kPieceTokens / 16 * 32 * 4;

struct AttentionTask {
  Global<const f32> q;       // [rows][heads][dim]
  Global<const u32> tokens;  // [rows][stride]; null: every row is dense
  Global<const u32> count;   // [rows]
  Global<const u8> dense;    // [rows] or null
  Global<f32> out;           // [rows][heads][dim]
  Global<f32> sums;          // [rows][units][heads][dim]: of a group's pieces, if it takes one unit
  Global<f32> stats;         // [rows][units][heads][2]: their maximum and total
  i64 stride;
  i32 heads, kv_heads, dim;
  i32 units;  // at most, of a row; 0: a group takes whole rows
  i32 unit;   // pieces of a unit, 1 or kSectionPieces
  f32 scale;  // of scores, base 2
};

DEVICE_FUNCTION f32 minus_infinity() {
  return f32_of_bits(0xff800000U);
}
/// 2^(x - max); an infinite maximum gives 1 to its equals instead of NaN, and -infinity is nothing.
DEVICE_FUNCTION f32 weight_below(f32 x, f32 max) {
  return x == minus_infinity() ? 0 : exp2_f32(x == max ? 0 : x - max);
}
/// One of two numbers is weighted by 1.
DEVICE_FUNCTION f32 folded(f32 x, f32 weight_x, f32 y, f32 weight_y) {
  return fma_f32(x, weight_x, y * weight_y);
}
DEVICE_FUNCTION f32 divided(f32 sum, f32 total) {
  return total == 0 ? 0 : sum / total;
}
DEVICE_FUNCTION i64 pieces_of(i64 count) {
  return (count + kPieceTokens - 1) / kPieceTokens;
}

/// What a lane has of a part of the tokens: heads l / 4 and l / 4 + 8 of the tile.
struct Attended {
  f32 max[2], total[2];
  MmaC sum[4];  // of dimension 32 simd + 4 column + i: columns as MmaC has them
};
DEVICE_FUNCTION Attended nothing_attended() {
  Attended a;
  UNROLL
  for (u32 i = 0; i < 2; ++i) {
    a.max[i] = minus_infinity();
    a.total[i] = 0;
  }
  UNROLL
  for (u32 i = 0; i < 4; ++i) a.sum[i] = no_sum();
  return a;
}
DEVICE_FUNCTION Attended fold(Attended a, Attended b) {
  UNROLL
  for (u32 h = 0; h < 2; ++h) {
    const f32 max = max_f32(a.max[h], b.max[h]);
    const f32 weight_a = weight_below(a.max[h], max);
    const f32 weight_b = weight_below(b.max[h], max);
    a.max[h] = max;
    a.total[h] = folded(a.total[h], weight_a, b.total[h], weight_b);
    UNROLL
    for (u32 i = 0; i < 4; ++i) {
      a.sum[i].r[2 * h] = folded(a.sum[i].r[2 * h], weight_a, b.sum[i].r[2 * h], weight_b);
      a.sum[i].r[2 * h + 1] = folded(a.sum[i].r[2 * h + 1], weight_a, b.sum[i].r[2 * h + 1], weight_b);
    }
  }
  return a;
}

/// Keys or values; vector v is the one of token v / kv_heads and its head v % kv_heads.
struct Vectors256 {
  Global<const f32> x;
  DEVICE_FUNCTION f32x4 four(i64 v, i64 d) const { return load4f(x, v * 256 + d); }
};
struct VectorsAny {
  Global<const f32> x;
  i64 dim;
  DEVICE_FUNCTION f32x4 four(i64 v, i64 d) const { return four_of(x, v * dim, d, dim); }
};
struct VectorsQ8 {
  Global<const i8> codes;
  Global<const u16> scales;  // half, one for 32 codes
  i64 dim;                   // a multiple of 32
  DEVICE_FUNCTION f32x4 four(i64 v, i64 d) const {
    if (d >= dim) return f32x4{0, 0, 0, 0};
    const u32 four = load1(codes, v * dim + d);
    const f32 scale = f32_of_half(scales[(v * dim + d) / 32]);
    return f32x4{scale * static_cast<f32>(static_cast<i8>(four & 0xffU)),
                 scale * static_cast<f32>(static_cast<i8>(four >> 8 & 0xffU)),
                 scale * static_cast<f32>(static_cast<i8>(four >> 16 & 0xffU)),
                 scale * static_cast<f32>(static_cast<i8>(four >> 24))};
  }
};

/// Four numbers of a head's sums.
DEVICE_FUNCTION void store_four(Global<f32> to, i64 at, i64 d, i64 dim, f32x4 v) {
  if (dim % 4 == 0) {
    if (d < dim) store4f(to, at + d, v);
    return;
  }
  if (d < dim) to[at + d] = v.x;
  if (d + 1 < dim) to[at + d + 1] = v.y;
  if (d + 2 < dim) to[at + d + 2] = v.z;
  if (d + 3 < dim) to[at + d + 3] = v.w;
}
/// A lane's part of one of its two heads, each number divided by `by`.
DEVICE_FUNCTION void store_head(const Thread& t, Attended a, u32 h, f32 by, Global<f32> to, i64 at, i64 dim) {
  const u32 d = 32 * t.simd + 8 * (t.lane % 4);
  UNROLL
  for (u32 c = 0; c < 2; ++c) {
    const u32 i = 2 * h + c;
    store_four(to, at, d + 4 * c, dim,
               f32x4{divided(a.sum[0].r[i], by), divided(a.sum[1].r[i], by), divided(a.sum[2].r[i], by),
                     divided(a.sum[3].r[i], by)});
  }
}

/// The scores of a SIMD group's 8 tokens; a lane's own key is the one of token l / 4 (`vector`, if `seen`).
template <u32 kDim, class Vectors>
DEVICE_FUNCTION SplitSum scores_of(const Thread& t, Vectors keys, i64 vector, bool seen, u32 steps,
                                   Shared<u32> queries) {
  constexpr u32 kBatch = 8;  // loads in flight
  SplitSum sum = no_split_sum();
  for (u32 first = 0; first < steps; first += kBatch) {
    f32x4 key[kBatch];
    UNROLL
    for (u32 i = 0; i < kBatch; ++i) {
      key[i] = f32x4{0, 0, 0, 0};
      if (seen && first + i < steps) key[i] = keys.four(vector, 16 * (first + i) + 4 * (t.lane % 4));
    }
    UNROLL
    for (u32 i = 0; i < kBatch; ++i) {
      if (first + i < steps) {
        const SplitA a = load_split_a(queries, (first + i) * 32 + t.lane, kAttentionDim / 16 * 32);
        sum = mma_split_sum(t, sum, a, split_b(key[i].x, key[i].y, key[i].z, key[i].w));
      }
    }
  }
  return sum;
}

/// Adds the values of a piece, 32 dimensions for each SIMD group.
template <class Vectors>
DEVICE_FUNCTION Attended add_values(const Thread& t, Attended a, Vectors values, i64 kv_heads, i64 kv_head,
                                    i64 left, Shared<u32> weights, Shared<u32> places) {
  constexpr u32 kBatch = 2;
  const u32 d = 32 * t.simd + 4 * (t.lane / 4);
  for (u32 first = 0; first < kPieceTokens / 16 && first * 16 < left; first += kBatch) {
    f32x4 value[kBatch][4];
    UNROLL
    for (u32 k = 0; k < kBatch; ++k) {
      UNROLL
      for (u32 i = 0; i < 4; ++i) {
        const u32 place = 16 * (first + k) + 8 * (i / 2) + 2 * (t.lane % 4) + i % 2;
        value[k][i] = f32x4{0, 0, 0, 0};
        if (place < left) value[k][i] = values.four(places[place] * kv_heads + kv_head, d);
      }
    }
    UNROLL
    for (u32 k = 0; k < kBatch; ++k) {
      const SplitA p = load_split_a(weights, (first + k) * 32 + t.lane, kPieceTokens / 16 * 32);
      const f32x4 v0 = value[k][0];
      const f32x4 v1 = value[k][1];
      const f32x4 v2 = value[k][2];
      const f32x4 v3 = value[k][3];
      a.sum[0] = mma_split(t, a.sum[0], p, split_b(v0.x, v1.x, v2.x, v3.x));
      a.sum[1] = mma_split(t, a.sum[1], p, split_b(v0.y, v1.y, v2.y, v3.y));
      a.sum[2] = mma_split(t, a.sum[2], p, split_b(v0.z, v1.z, v2.z, v3.z));
      a.sum[3] = mma_split(t, a.sum[3], p, split_b(v0.w, v1.w, v2.w, v3.w));
    }
  }
  return a;
}

/// The token in a place of a row's list; 0 beyond its end.
DEVICE_FUNCTION u32 token_at(AttentionTask task, i64 row, bool listed, i64 place, i64 count) {
  if (place >= count) return 0;
  return listed ? u32(task.tokens[row * task.stride + place]) : static_cast<u32>(place);
}

/// Groups (units of a row, kv heads x head tiles, rows).
template <u32 kDim, class Vectors>
DEVICE_FUNCTION void attend(const Thread& t, AttentionTask task, Vectors keys, Vectors values,
                            Shared<u32> queries, Shared<u32> weights, Shared<f32> maxima, Shared<f32> totals,
                            Shared<u32> places) {
  const i64 dim = kDim != 0 ? kDim : task.dim;
  const u32 steps = static_cast<u32>((dim + 15) / 16);
  const i64 row = t.group_z;
  const i64 kv_head = t.group_y % static_cast<u32>(task.kv_heads);
  const i64 tile = t.group_y / static_cast<u32>(task.kv_heads);
  const i64 heads_per_kv = task.heads / task.kv_heads;
  const i64 head = kv_head * heads_per_kv + tile * kHeadTile;  // the first
  const i64 heads = min_of<i64>(kHeadTile, heads_per_kv - tile * kHeadTile);
  const i64 count = static_cast<i64>(task.count[row]);
  const bool listed = !(task.tokens == nullptr) && (task.dense == nullptr || task.dense[row] == 0);
  const bool whole = task.units == 0;
  const i64 first = whole ? 0 : static_cast<i64>(t.group_x) * task.unit;
  i64 last = pieces_of(count);
  if (!whole) {
    if (first >= last) return;
    last = min_of<i64>(last, first + task.unit);
  }

  for (u32 slot = t.index; slot < steps * 32; slot += kAttentionThreads) {
    const i64 d = slot / 32 * 16 + 4 * (slot % 4);
    const i64 h = slot % 32 / 4;
    f32x4 q[2];
    UNROLL
    for (u32 i = 0; i < 2; ++i) {
      q[i] = f32x4{0, 0, 0, 0};
      if (h + 8 * i < heads) q[i] = four_of(task.q, (row * task.heads + head + h + 8 * i) * dim, d, dim);
      q[i] = f32x4{q[i].x * task.scale, q[i].y * task.scale, q[i].z * task.scale, q[i].w * task.scale};
    }
    store_split_a(queries, slot, kAttentionDim / 16 * 32, q[0], q[1]);
  }
  barrier(t);

  Attended all = nothing_attended();
  Attended section = nothing_attended();
  const u32 place = 8 * t.simd + t.lane / 4;
  u32 token = token_at(task, row, listed, first * kPieceTokens + place, count);
  for (i64 piece = first; piece < last; ++piece) {
    const i64 left = count - piece * kPieceTokens;
    SplitSum scores = no_split_sum();
    if (8 * t.simd < left) {
      scores = scores_of<kDim>(t, keys, static_cast<i64>(token) * task.kv_heads + kv_head, place < left,
                               steps, queries);
    }
    f32 p[4];
    UNROLL
    for (u32 i = 0; i < 4; ++i) {
      p[i] = 8 * t.simd + 2 * (t.lane % 4) + i % 2 < left ? total_of(scores, i) : minus_infinity();
    }
    Attended now = nothing_attended();
    UNROLL
    for (u32 h = 0; h < 2; ++h) {
      f32 max = max_f32(p[2 * h], p[2 * h + 1]);
      max = max_f32(max, simd_shuffle_xor(t, max, 1));
      max = max_f32(max, simd_shuffle_xor(t, max, 2));
      if (t.lane % 4 == 0) maxima[(t.lane / 4 + 8 * h) * kAttentionSimds + t.simd] = max;
    }
    // Everybody is done with the piece before: its weights, totals and places may go.
    barrier(t);
    if (t.lane % 4 == 0) places[place] = token;
    // The next piece's, long before it is needed.
    token = token_at(task, row, listed, (piece + 1) * kPieceTokens + place, count);
    UNROLL
    for (u32 h = 0; h < 2; ++h) {
      const u32 of_head = (t.lane / 4 + 8 * h) * kAttentionSimds;
      const f32x4 m0 = load4f(maxima, of_head);
      const f32x4 m1 = load4f(maxima, of_head + 4);
      const f32 max = max_f32(max_f32(max_f32(m0.x, m0.y), max_f32(m0.z, m0.w)),
                              max_f32(max_f32(m1.x, m1.y), max_f32(m1.z, m1.w)));
      now.max[h] = max;
      p[2 * h] = weight_below(p[2 * h], max);
      p[2 * h + 1] = weight_below(p[2 * h + 1], max);
      f32 total = p[2 * h] + p[2 * h + 1];
      total += simd_shuffle_xor(t, total, 1);
      total += simd_shuffle_xor(t, total, 2);
      if (t.lane % 4 == 0) totals[of_head + t.simd] = total;
    }
    // Two SIMD groups have the 16 tokens of a fragment: r[0], r[1] are of the first, r[2], r[3] of the other.
    const SplitPair p0 = split_pair(p[0], p[1]);
    const SplitPair p1 = split_pair(p[2], p[3]);
    UNROLL
    for (u32 i = 0; i < kParts; ++i) {
      const u32 slot = (i * (kPieceTokens / 16) + t.simd / 2) * 32 + t.lane;
      store2(weights, slot * 4 + t.simd % 2 * 2, u32x2{p0.r[i], p1.r[i]});
    }
    barrier(t);
    UNROLL
    for (u32 h = 0; h < 2; ++h) {
      const u32 of_head = (t.lane / 4 + 8 * h) * kAttentionSimds;
      const f32x4 t0 = load4f(totals, of_head);
      const f32x4 t1 = load4f(totals, of_head + 4);
      now.total[h] = ((t0.x + t0.y) + (t0.z + t0.w)) + ((t1.x + t1.y) + (t1.z + t1.w));
    }
    if (32 * t.simd < dim) now = add_values(t, now, values, task.kv_heads, kv_head, left, weights, places);
    section = fold(section, now);
    if (whole && (piece % kSectionPieces == kSectionPieces - 1 || piece == last - 1)) {
      all = fold(all, section);
      section = nothing_attended();
    }
  }

  if (32 * t.simd >= dim) return;
  UNROLL
  for (u32 h = 0; h < 2; ++h) {
    const i64 in_tile = t.lane / 4 + 8 * h;
    if (in_tile < heads) {
      if (whole) {
        store_head(t, all, h, all.total[h], task.out, (row * task.heads + head + in_tile) * dim, dim);
      } else {
        const i64 at = (row * task.units + t.group_x) * task.heads + head + in_tile;
        // Sums are left as they are: x / 1.
        store_head(t, section, h, 1, task.sums, at * dim, dim);
        if (t.simd == 0 && t.lane % 4 == 0) {
          task.stats[at * 2] = section.max[h];
          task.stats[at * 2 + 1] = section.total[h];
        }
      }
    }
  }
}

#define SLUICE_ATTENTION_SHARED                    \
  SHARED(u32, queries, kQueryWords);               \
  SHARED(u32, weights, kWeightWords);              \
  SHARED(f32, maxima, kHeadTile* kAttentionSimds); \
  SHARED(f32, totals, kHeadTile* kAttentionSimds); \
  SHARED(u32, places, kPieceTokens)

struct AttentionArgs {
  AttentionTask task;
  Global<const f32> keys, values;  // [tokens][kv_heads][dim]
};
/// For heads of 256.
KERNEL_RESIDENT(attention_256, AttentionArgs, kAttentionThreads, 2) {
  KERNEL_THREAD(t);
  SLUICE_ATTENTION_SHARED;
  attend<256>(t, args.task, Vectors256{args.keys}, Vectors256{args.values}, queries, weights, maxima, totals,
              places);
}
/// For heads of at most 256.
KERNEL_RESIDENT(attention_any, AttentionArgs, kAttentionThreads, 2) {
  KERNEL_THREAD(t);
  SLUICE_ATTENTION_SHARED;
  attend<0>(t, args.task, VectorsAny{args.keys, args.task.dim}, VectorsAny{args.values, args.task.dim},
            queries, weights, maxima, totals, places);
}

struct AttentionQ8Args {
  AttentionTask task;
  Global<const i8> keys, values;               // [tokens][kv_heads][dim]
  Global<const u16> key_scales, value_scales;  // half [tokens][kv_heads * dim / 32]
};
/// For heads of at most 256, a multiple of 32.
KERNEL_RESIDENT(attention_q8, AttentionQ8Args, kAttentionThreads, 2) {
  KERNEL_THREAD(t);
  SLUICE_ATTENTION_SHARED;
  attend<0>(t, args.task, VectorsQ8{args.keys, args.key_scales, args.task.dim},
            VectorsQ8{args.values, args.value_scales, args.task.dim}, queries, weights, maxima, totals,
            places);
}

struct AttentionMergeArgs {
  AttentionTask task;
};
/// Folds a row's units as a group that takes the whole row does. Groups (heads, rows), a thread a dimension.
KERNEL(attention_merge, AttentionMergeArgs, kAttentionThreads) {
  KERNEL_THREAD(t);
  const i64 row = t.group_y;
  const i64 head = t.group_x;
  const i64 heads = args.task.heads;
  const i64 dim = args.task.dim;
  const i64 count = static_cast<i64>(args.task.count[row]);
  const i64 unit = args.task.unit;
  const i64 units = (pieces_of(count) + unit - 1) / unit;
  if (t.index >= dim) return;
  f32 max = minus_infinity();
  f32 total = 0;
  f32 sum = 0;
  for (i64 first = 0; first < units; first += kSectionPieces) {
    f32 maxima[kSectionPieces];
    f32 totals[kSectionPieces];
    f32 sums[kSectionPieces];
    UNROLL
    for (u32 i = 0; i < kSectionPieces; ++i) {
      maxima[i] = minus_infinity();
      totals[i] = 0;
      sums[i] = 0;
      if (first + i < units) {
        const i64 at = (row * args.task.units + first + i) * heads + head;
        maxima[i] = args.task.stats[at * 2];
        totals[i] = args.task.stats[at * 2 + 1];
        sums[i] = args.task.sums[at * dim + t.index];
      }
    }
    // Pieces make their section first, in the place of the first of them.
    UNROLL
    for (u32 i = 1; i < kSectionPieces; ++i) {
      if (unit == 1 && first + i < units) {
        const f32 most = max_f32(maxima[0], maxima[i]);
        const f32 before = weight_below(maxima[0], most);
        const f32 now = weight_below(maxima[i], most);
        maxima[0] = most;
        totals[0] = folded(totals[0], before, totals[i], now);
        sums[0] = folded(sums[0], before, sums[i], now);
      }
    }
    UNROLL
    for (u32 i = 0; i < kSectionPieces; ++i) {
      if (i == 0 || (unit != 1 && first + i < units)) {
        const f32 most = max_f32(max, maxima[i]);
        const f32 before = weight_below(max, most);
        const f32 now = weight_below(maxima[i], most);
        max = most;
        total = folded(total, before, totals[i], now);
        sum = folded(sum, before, sums[i], now);
      }
    }
  }
  args.task.out[(row * heads + head) * dim + t.index] = divided(sum, total);
}

struct SoftmaxSelectedArgs {
  Global<const f32> scores;      // [rows][stride]
  Global<const u32> block_mask;  // [queries][mask_words]
  Global<u16> out;               // half [rows][stride]
  i64 stride, queries, base, ratio, mask_words;
};
/// A group a row.
KERNEL(softmax_selected, SoftmaxSelectedArgs, kAttentionThreads) {
  KERNEL_THREAD(t);
  SHARED(f32, each, kAttentionSimds);
  const i64 first = static_cast<i64>(t.group_x) * args.stride;
  const i64 query = static_cast<i64>(t.group_x) % args.queries;
  const i64 visible = args.base + query + 1;
  const i64 complete = visible / args.ratio;  // blocks; what follows them is the tail
  f32 max = minus_infinity();
  f32 total = 0;
  // Once for the maximum, once for the total, once to write. What a row does not see is never read.
  for (u32 pass = 0; pass < 3; ++pass) {
    for (i64 i = t.index; i < args.stride; i += kAttentionThreads) {
      const i64 block = i / args.ratio;
      bool sees = i < visible;
      if (sees && block < complete) {
        sees = block / 32 < args.mask_words &&
               ((args.block_mask[query * args.mask_words + block / 32] >> (block % 32)) & 1U) != 0;
      }
      const f32 score = sees ? f32(args.scores[first + i]) : minus_infinity();
      if (pass == 0) {
        max = max_f32(max, score);
      } else if (pass == 1) {
        total += weight_below(score, max);
      } else {
        args.out[first + i] = half_of_f32(divided(weight_below(score, max), total));
      }
    }
    if (pass == 0) max = group_max(t, max, each, kAttentionSimds);
    if (pass == 1) total = group_sum(t, total, each, kAttentionSimds);
  }
}

}  // namespace sluice::kernels
