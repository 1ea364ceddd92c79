// The router's choices regrouped by expert on the device, so that no step waits for the host (model.md 3.9).
//
// A pair is a row and one of the experts it chose. Pairs are ordered by expert, then by row; a row's slots
// are its experts in ascending id. Every entry of the table gets its place; those that no row chose are left
// out of the batch, and places beyond are empty.
#pragma once

#include "router.h"
#include "stage.h"

#define SLUICE_GROUP_KERNELS(X) \
  X(group_few)                  \
  X(route_few)                  \
  X(group_count)                \
  X(group_places)               \
  X(group_fill)

namespace sluice::kernels {

struct GroupArgs {
  Global<const u32> index;   // [rows][k]: what each row chose
  Global<const f32> weight;  // [rows][k]
  Global<const u64> table;   // [experts]: each expert's entry
  Global<u64> entries;       // [most]: the entries that were chosen, ascending id
  Global<u32> begin;         // [most + 1]: places in pairs
  Global<u32> pair_row;      // [rows * k]
  Global<u32> pair_slot;     // [rows * k]
  Global<f32> slot_weight;   // [rows][k]
  Global<u32> count;         // [experts]: scratch
  Global<u32> place;         // [experts]: scratch
  i64 rows, k, experts, most;
};

/// The slot of an expert in a row: how many of the row's experts have a lower id.
DEVICE_FUNCTION u32 slot_of(Global<const u32> row, i64 k, u32 id) {
  u32 slot = 0;
  for (i64 j = 0; j < k; ++j) slot += row[j] < id ? 1U : 0U;
  return slot;
}

constexpr u32 kFewPairs = 512;
constexpr u32 kNoExpert = 0xffffffffU;
/// One group, for up to kFewPairs pairs whose experts lie in `ids`, kNoExpert beyond: every pair finds its
/// rank among all. `firsts` is for the expert of each pair that is its expert's first.
DEVICE_FUNCTION void group_pairs(const Thread& t, const GroupArgs& args, f32 weight, Shared<u32> ids,
                                 Shared<u32> firsts) {
  const u32 k = static_cast<u32>(args.k);
  const u32 pairs = static_cast<u32>(args.rows) * k;
  const u32 most = static_cast<u32>(args.most);
  const u32 threads = (pairs + 31) / 32 * 32;  // the SIMD groups that have pairs
  const bool works = t.index < threads;
  const bool present = t.index < pairs;
  const u32 id = ids[t.index];
  const u64 entry = args.table[present ? id : 0];
  const u32 row = t.index / k;
  u32 rank = 0;  // pairs before this one in the order
  u32 slot = 0;  // experts of its row with a lower id
  bool first = present;
  NO_UNROLL for (u32 p = 0; works && p < pairs; p += 4) {
    const u32x4 four = load4(ids, p);
    const u32 other[4] = {four.x, four.y, four.z, four.w};
    UNROLL for (u32 i = 0; i < 4; ++i) {
      const bool before = other[i] == id && p + i < t.index;
      if (before) first = false;
      if (before || other[i] < id) ++rank;
      if (other[i] < id && p + i - row * k < k) ++slot;
    }
  }
  firsts[t.index] = first ? id : kNoExpert;
  if (present) {
    args.pair_row[rank] = row;
    args.pair_slot[rank] = slot;
    args.slot_weight[row * k + slot] = weight;
  }
  barrier(t);
  if (!works) return;
  u32 distinct = 0;  // experts before this one's
  u32 all = 0;
  NO_UNROLL for (u32 p = 0; p < pairs; p += 4) {
    const u32x4 four = load4(firsts, p);
    const u32 other[4] = {four.x, four.y, four.z, four.w};
    UNROLL for (u32 i = 0; i < 4; ++i) {
      if (other[i] < id) ++distinct;
      if (other[i] != kNoExpert) ++all;
    }
  }
  if (first) {
    args.entries[distinct] = entry;
    args.begin[distinct] = rank;
  }
  NO_UNROLL for (u32 e = all + t.index; e <= most; e += threads) {
    args.begin[e] = pairs;
    if (e < most) args.entries[e] = args.table[0];
  }
}

KERNEL(group_few, GroupArgs, kFewPairs) {
  KERNEL_THREAD(t);
  SHARED(u32, ids, kFewPairs);
  SHARED(u32, firsts, kFewPairs);
  const bool present = t.index < args.rows * args.k;
  ids[t.index] = present ? static_cast<u32>(args.index[t.index]) : kNoExpert;
  const f32 weight = present ? static_cast<f32>(args.weight[t.index]) : 0.0F;
  barrier(t);
  group_pairs(t, args, weight, ids, firsts);
}

struct RouteFewArgs {
  RouterChooseArgs choose;
  GroupArgs group;
  RoundArgs round;
};
/// The first group: the choices of up to 16 rows, a SIMD group each, then their regrouping. What choose_few
/// takes. Others, if there are any, round the experts' rows meanwhile.
KERNEL(route_few, RouteFewArgs, kFewPairs) {
  KERNEL_THREAD_EARLY(t);
  SHARED(u32, ids, kFewPairs);
  SHARED(u32, firsts, kFewPairs);
  SHARED(f32, weights, kFewPairs);
  // The rows lie further back than the kernel before.
  if (t.group_x > 0) return round_one(t, args.round, (t.group_x - 1) * (kFewPairs / 32) + t.simd);
  wait_for_kernel_before();
  ids[t.index] = kNoExpert;
  barrier(t);
  if (t.simd < args.group.rows) {
    const FewChosen chosen = choose_few(t, args.choose, t.simd);
    const u32 k = static_cast<u32>(args.choose.k);
    if (t.lane < k) {
      ids[t.simd * k + t.lane] = chosen.index;
      weights[t.simd * k + t.lane] = chosen.weight;
    }
  }
  barrier(t);
  group_pairs(t, args.group, weights[t.index], ids, firsts);
}

constexpr u32 kGroupThreads = 256;
/// Groups (experts): counts an expert's pairs.
KERNEL(group_count, GroupArgs, kGroupThreads) {
  KERNEL_THREAD(t);
  SHARED(f32, each, kGroupThreads / 32);
  const i64 pairs = args.rows * args.k;
  u32 found = 0;
  for (i64 p = t.index; p < pairs; p += kGroupThreads) found += args.index[p] == t.group_x ? 1U : 0U;
  // Counts below 2^24 are exact as floats.
  const f32 all = group_sum(t, static_cast<f32>(found), each, kGroupThreads / 32);
  if (t.index == 0) args.count[t.group_x] = static_cast<u32>(all);
}

constexpr u32 kPlaceThreads = 1024;
/// One group: where each expert's pairs begin, and which entries there are.
KERNEL(group_places, GroupArgs, kPlaceThreads) {
  KERNEL_THREAD(t);
  SHARED(u32, pairs, kPlaceThreads);
  SHARED(u32, chosen, kPlaceThreads);
  u32 pairs_before = 0;
  u32 chosen_before = 0;
  for (i64 first = 0; first < args.experts; first += kPlaceThreads) {
    const i64 expert = first + t.index;
    const u32 count = expert < args.experts ? args.count[expert] : 0;
    pairs[t.index] = count;
    chosen[t.index] = count > 0 ? 1 : 0;
    barrier(t);
    for (u32 step = 1; step < kPlaceThreads; step *= 2) {
      const u32 a = t.index >= step ? pairs[t.index - step] : 0;
      const u32 b = t.index >= step ? chosen[t.index - step] : 0;
      barrier(t);
      pairs[t.index] += a;
      chosen[t.index] += b;
      barrier(t);
    }
    const u32 at = pairs_before + pairs[t.index] - count;
    if (expert < args.experts) args.place[expert] = at;
    if (count > 0) {
      const u32 entry = chosen_before + chosen[t.index] - 1;
      args.entries[entry] = args.table[expert];
      args.begin[entry] = at;
    }
    pairs_before += pairs[kPlaceThreads - 1];
    chosen_before += chosen[kPlaceThreads - 1];
    barrier(t);
  }
  for (i64 e = chosen_before + t.index; e <= args.most; e += kPlaceThreads) {
    args.begin[e] = pairs_before;
    if (e < args.most) args.entries[e] = args.table[0];
  }
}

/// Groups (experts): writes an expert's pairs in the order of their rows.
KERNEL(group_fill, GroupArgs, kGroupThreads) {
  KERNEL_THREAD(t);
  SHARED(u32, each, kGroupThreads / 32);
  const i64 pairs = args.rows * args.k;
  const u32 id = t.group_x;
  u32 at = args.place[id];
  if (args.count[id] == 0) return;
  for (i64 first = 0; first < pairs; first += kGroupThreads) {
    const i64 p = first + t.index;
    const bool mine = p < pairs && args.index[p < pairs ? p : 0] == id;
    const u32 lanes = simd_ballot(t, mine);
    if (t.lane == 0) each[t.simd] = count_bits(lanes);
    barrier(t);
    u32 before = count_bits(lanes & ((1U << t.lane) - 1));
    u32 all = 0;
    for (u32 s = 0; s < kGroupThreads / 32; ++s) {
      if (s < t.simd) before += each[s];
      all += each[s];
    }
    if (mine) {
      const i64 row = static_cast<u32>(p) / static_cast<u32>(args.k);
      const u32 slot = slot_of(args.index + row * args.k, args.k, id);
      args.pair_row[at + before] = static_cast<u32>(row);
      args.pair_slot[at + before] = slot;
      args.slot_weight[row * args.k + slot] = args.weight[p];
    }
    at += all;
    barrier(t);
  }
}

}  // namespace sluice::kernels
