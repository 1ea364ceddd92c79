// The router's choice, and the sum of what the chosen experts gave (model.md 3.9).
#pragma once

#include "quads.h"

#define SLUICE_ROUTER_KERNELS(X) \
  X(router_choose)               \
  X(combine_slots)

namespace sluice::kernels {

constexpr u32 kRouterThreads = 32;
constexpr u32 kRouterKept = 16;  // logits that a lane holds: 512 experts

struct RouterChooseArgs {
  Global<const f32> logits;  // [rows][n]
  Global<u32> index;         // [rows][k]
  Global<f32> weight;        // [rows][k]
  i64 n, k;
  u32 renormalise;
};

/// order_key, but 0 for what is not there: NaN has 1, still below every number.
DEVICE_FUNCTION u32 router_key(f32 logit) {
  return max_of(order_key(logit), 1U);
}
/// The number of a key, NaN for that of NaN.
DEVICE_FUNCTION f32 router_logit(u32 key) {
  if (key == 1) return f32_of_bits(0x7fc00000U);
  return f32_of_bits((key & 0x80000000U) != 0 ? key ^ 0x80000000U : ~key);
}
/// e^(logit - most): 0 for NaN, and 1 for an infinite maximum itself.
DEVICE_FUNCTION f32 router_power(f32 logit, f32 most) {
  if (is_nan(logit)) return 0;
  return logit == most ? 1.0F : exp_f32(logit - most);
}

/// A SIMD group a row. The larger logit first, equal ones by the lower index, NaN last; each round finds the
/// one that follows the one before. Weights are summed in the order of choice, or else over all n by lanes.
DEVICE_FUNCTION void choose_row(const Thread& t, const RouterChooseArgs& args, i64 row) {
  const Global<const f32> logits = args.logits + row * args.n;
  const i64 out = row * args.k;
  u32 kept[kRouterKept];
  UNROLL for (u32 i = 0; i < kRouterKept; ++i) {
    const i64 at = 32 * i + t.lane;
    kept[i] = at < args.n ? router_key(logits[at]) : 0;
  }
  constexpr i64 kFirstLeft = 32 * kRouterKept;
  const i64 rounds = min_of(args.n, args.k);
  u32 last_key = 0xffffffffU;  // of the last chosen: above every key
  u32 last_place = 0;
  f32 most = 0;
  f32 total = 0;
  NO_UNROLL for (i64 round = 0; round < rounds; ++round) {
    u32 key = 0;
    u32 place = 0;
    UNROLL for (u32 i = 0; i < kRouterKept; ++i) {
      const u32 at = 32 * i + t.lane;
      const bool left = kept[i] < last_key || (kept[i] == last_key && at > last_place);
      if (left && kept[i] > key) {
        key = kept[i];
        place = at;
      }
    }
    NO_UNROLL for (i64 i = kFirstLeft + t.lane; i < args.n; i += 32) {
      const u32 now = router_key(logits[i]);
      const u32 at = static_cast<u32>(i);
      if ((now < last_key || (now == last_key && at > last_place)) && now > key) {
        key = now;
        place = at;
      }
    }
    last_key = simd_max_u32(t, key);
    last_place = ~simd_max_u32(t, key == last_key ? ~place : 0U);
    const f32 logit = router_logit(last_key);
    if (round == 0) most = logit;
    const f32 power = router_power(logit, most);
    total += power;
    if (t.lane == static_cast<u32>(round % 32)) {
      args.index[out + round] = last_place;
      args.weight[out + round] = power;
    }
  }
  if (args.renormalise == 0) {
    f32 sum = 0;
    UNROLL for (u32 i = 0; i < kRouterKept; ++i) {
      if (kept[i] != 0) sum += router_power(router_logit(kept[i]), most);
    }
    NO_UNROLL for (i64 i = kFirstLeft + t.lane; i < args.n; i += 32) sum += router_power(logits[i], most);
    total = simd_sum(t, sum);
  }
  // A lane divides what it has written itself.
  NO_UNROLL for (i64 i = t.lane; i < rounds; i += 32) {
    args.weight[out + i] = total > 0 ? args.weight[out + i] / total : 0.0F;
  }
}

constexpr u32 kRouterFew = 32;  // choices of a row that a SIMD group holds
/// What choose_row would write, for up to 512 experts and 32 choices: choice number l is lane l's.
struct FewChosen {
  u32 index;
  f32 weight;
};
/// Each lane keeps the best of what it has left; the one whose best is taken looks for its next.
DEVICE_FUNCTION FewChosen choose_few(const Thread& t, const RouterChooseArgs& args, u32 row) {
  const u32 n = static_cast<u32>(args.n);
  const u32 rounds = min_of(n, static_cast<u32>(args.k));
  const Global<const f32> logits = args.logits + row * n;
  u32 kept[kRouterKept];
  UNROLL for (u32 i = 0; i < kRouterKept; ++i) {
    const u32 at = 32 * i + t.lane;
    kept[i] = 0;
    if (at < n) kept[i] = bits_of_f32(logits[at]);
  }
  u32 best = 0;
  u32 place = 0;
  UNROLL for (u32 i = 0; i < kRouterKept; ++i) {
    if (32 * i + t.lane < n) kept[i] = router_key(f32_of_bits(kept[i]));
    place = kept[i] > best ? i : place;
    best = max_of(best, kept[i]);
  }
  const f32 most = router_logit(simd_max_u32(t, best));
  f32 total = 0;
  if (args.renormalise == 0) {
    UNROLL for (u32 i = 0; i < kRouterKept; ++i) {
      if (kept[i] != 0) total += router_power(router_logit(kept[i]), most);
    }
    total = simd_sum(t, total);
  }
  u32 chosen_key = 1;
  FewChosen chosen{0, 0};
  NO_UNROLL for (u32 round = 0; round < rounds; ++round) {
    const u32 key = simd_max_u32(t, best);
    const u32 at = ~simd_max_u32(t, best == key ? ~(32 * place + t.lane) : 0U);
    if (t.lane == round) {
      chosen.index = at;
      chosen_key = key;
    }
    if (t.lane != at % 32) continue;
    const u32 taken = place;
    best = 0;
    UNROLL for (u32 i = 0; i < kRouterKept; ++i) {
      kept[i] = i == taken ? 0 : kept[i];
      place = kept[i] > best ? i : place;
      best = max_of(best, kept[i]);
    }
  }
  const f32 power = router_power(router_logit(chosen_key), most);
  if (args.renormalise != 0) {
    NO_UNROLL for (u32 round = 0; round < rounds; ++round) total += simd_shuffle(t, power, round);
  }
  chosen.weight = total > 0 ? power / total : 0.0F;
  if (t.lane < rounds) {
    args.index[row * static_cast<u32>(args.k) + t.lane] = chosen.index;
    args.weight[row * static_cast<u32>(args.k) + t.lane] = chosen.weight;
  }
  return chosen;
}

KERNEL(router_choose, RouterChooseArgs, kRouterThreads) {
  KERNEL_THREAD(t);
  if (args.n <= 32 * kRouterKept && args.k <= kRouterFew) {
    choose_few(t, args, t.group_x);
  } else {
    choose_row(t, args, t.group_x);
  }
}

constexpr u32 kCombineThreads = 64;
constexpr u32 kCombineSlots = 8;  // read before any is added

struct CombineSlotsArgs {
  Global<const f32> y;       // [rows][slots][width]
  Global<const f32> weight;  // [rows][slots]
  Global<f32> out;           // [rows][width]
  i64 slots, width;
  u32 aligned;
};
/// Groups (rows, parts of a row). Slots in ascending order; one of weight 0 is not read.
KERNEL(combine_slots, CombineSlotsArgs, kCombineThreads) {
  KERNEL_THREAD(t);
  const i64 row = t.group_x;
  const i64 at = 4 * (static_cast<i64>(t.group_y) * kCombineThreads + t.index);
  if (at >= args.width) return;
  const bool aligned = args.aligned != 0;
  f32x4 sum{0, 0, 0, 0};
  for (i64 first = row * args.slots; first < (row + 1) * args.slots; first += kCombineSlots) {
    f32 weight[kCombineSlots];
    f32x4 y[kCombineSlots];
    UNROLL for (u32 i = 0; i < kCombineSlots; ++i) {
      weight[i] = first + i < (row + 1) * args.slots ? static_cast<f32>(args.weight[first + i]) : 0.0F;
    }
    UNROLL for (u32 i = 0; i < kCombineSlots; ++i) {
      y[i] = f32x4{0, 0, 0, 0};
      if (weight[i] != 0) y[i] = quad_of(args.y + (first + i) * args.width, at, args.width, aligned);
    }
    UNROLL for (u32 i = 0; i < kCombineSlots; ++i) sum = quad_fma(y[i], weight[i], sum);
  }
  set_quad(args.out + row * args.width, at, args.width, aligned, sum);
}

}  // namespace sluice::kernels
