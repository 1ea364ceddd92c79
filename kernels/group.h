// The router's choices regrouped by expert on the device, so that no step waits for the host (model.md 3.9).
//
// A pair is a row and one of the experts it chose. Pairs are ordered by expert, then by row; a row's slots
// are its experts in ascending id. Every entry of the table gets its place; those that no row chose are left
// out of the batch, and places beyond are empty.
#pragma once

#include "router.h"

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
/// One group, for up to kFewPairs pairs: every pair finds its rank among all.
DEVICE_FUNCTION void group_pairs(const Thread& t, const GroupArgs& args, Shared<u32> ids) {
  const u32 pairs = static_cast<u32>(args.rows * args.k);
  if (t.index < pairs) ids[t.index] = args.index[t.index];
  barrier(t);
  const u32 id = t.index < pairs ? ids[t.index] : 0;
  u32 rank = 0;      // pairs before this one in the order
  u32 distinct = 0;  // experts before this one's
  bool first = true;
  if (t.index < pairs) {
    NO_UNROLL for (u32 p = 0; p < pairs; ++p) {
      const u32 other = ids[p];
      if (other < id || (other == id && p < t.index)) ++rank;
      if (other == id && p < t.index) first = false;
    }
    const u32 k = static_cast<u32>(args.k);
    const i64 row = t.index / k;
    u32 slot = 0;
    NO_UNROLL for (u32 j = 0; j < k; ++j) slot += ids[t.index / k * k + j] < id ? 1U : 0U;
    args.pair_row[rank] = static_cast<u32>(row);
    args.pair_slot[rank] = slot;
    args.slot_weight[row * args.k + slot] = args.weight[t.index];
  }
  barrier(t);
  // The first pair of each expert, by rank: what comes before it in that order is a lower expert's.
  if (t.index < kFewPairs) {
    if (t.index < pairs) ids[t.index] = 0;
  }
  barrier(t);
  if (t.index < pairs && first) ids[rank] = 1;
  barrier(t);
  if (t.index < pairs && first) {
    NO_UNROLL for (u32 p = 0; p < rank; ++p) distinct += ids[p];
    args.entries[distinct] = args.table[id];
    args.begin[distinct] = rank;
  }
  barrier(t);
  u32 all = 0;
  NO_UNROLL for (u32 p = 0; p < pairs; ++p) all += ids[p];
  NO_UNROLL for (i64 e = all + t.index; e <= args.most; e += kFewPairs) {
    args.begin[e] = pairs;
    if (e < args.most) args.entries[e] = args.table[0];
  }
}

KERNEL(group_few, GroupArgs, kFewPairs) {
  KERNEL_THREAD(t);
  SHARED(u32, ids, kFewPairs);
  group_pairs(t, args, ids);
}

struct RouteFewArgs {
  RouterChooseArgs choose;
  GroupArgs group;
};
/// One group: the choices of up to 16 rows, a SIMD group each, then their regrouping.
KERNEL(route_few, RouteFewArgs, kFewPairs) {
  KERNEL_THREAD(t);
  SHARED(u32, ids, kFewPairs);
  if (t.simd < args.group.rows) choose_row(t, args.choose, t.simd);
  barrier(t);
  group_pairs(t, args.group, ids);
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
