// The wide multiplication: four SIMD groups multiply 64 rows by 64 inputs by 64 columns, the columns being
// read from the group's memory once for all of them; and the ring of stages through which columns come there.
// Hopper has both (dialect/wgmma.h); elsewhere they are made of mma_f16, with the same order of summation,
// and of plain copies. Not on Metal, where kernels have too little memory for it.
#pragma once

namespace sluice::kernels {

/// Where chunk `chunk` (four words, eight of them a column's 64 inputs) of a column lies in the columns of a
/// wide multiplication, in words. Step s of 16 inputs is chunks 2 s and 2 s + 1: word q of them is what
/// quarter q of a SIMD group holds in MmaB::r[0] and r[1].
DEVICE_FUNCTION u32 wide_place(u32 column, u32 chunk) {
  return column * 32 + (chunk ^ (column % 8)) * 4;
}
/// SIMD group number 4 n + i has rows 16 i .. + 15 of what its four multiply: steps of 16 inputs.
struct WideA {
  MmaA step[4];
};
/// Tiles of 8 columns.
struct WideC {
  MmaC tile[8];
};

/// Stages that one thread fills and all read, one after the other: a turn is each once.
template <u32 kStages>
struct StageRing {
  Shared<u64> marks;  // [2 * kStages]
};

}  // namespace sluice::kernels

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "dialect/wgmma.h"
#else
namespace sluice::kernels {

/// c = a times the columns, which begin at a multiple of 1 KiB. It may be under way until wide_wait: until
/// then c is not read, and a and the columns stay as they are.
DEVICE_FUNCTION void wide_multiply(const Thread& t, WideC& c, const WideA& a, Shared<u32> columns) {
  UNROLL for (u32 n = 0; n < 8; ++n) {
    const u32 column = n * 8 + t.lane / 4;
    c.tile[n].r[0] = c.tile[n].r[1] = c.tile[n].r[2] = c.tile[n].r[3] = 0;
    UNROLL for (u32 s = 0; s < 4; ++s) {
      MmaB b;
      b.r[0] = columns[wide_place(column, 2 * s) + t.lane % 4];
      b.r[1] = columns[wide_place(column, 2 * s + 1) + t.lane % 4];
      mma_f16(t, c.tile[n], a.step[s], b);
    }
  }
}
/// c is there: it was not among the last kLeft multiplications of the SIMD group.
template <u32 kLeft>
DEVICE_FUNCTION void wide_wait(const Thread&, WideC&) {}
/// After the wait for the last multiplication of a: it stayed what it was until here.
DEVICE_FUNCTION void wide_keep(WideA&) {}

/// Every thread, before all else; `simds` SIMD groups read.
template <u32 kStages>
DEVICE_FUNCTION void ring_begin(const Thread& t, const StageRing<kStages>&, u32) {
  barrier(t);
}
/// By one thread, stages in order: waits until the stage's fill of the turn before has been released. `words`
/// are all that ring_fill brings there.
template <u32 kStages>
DEVICE_FUNCTION void ring_open(const StageRing<kStages>&, u32, u32, u32) {}
/// A multiple of four words. They have arrived after ring_wait.
template <u32 kStages>
DEVICE_FUNCTION void ring_fill(const StageRing<kStages>&, u32, Shared<u32> to, Global<const u32> from,
                               u32 words) {
  for (u32 i = 0; i < words; i += 4) store4(to, i, load4(from, i));
}
/// Every thread, in order. The one that fills is no further than kStages - 1 fills ahead of its waits, and
/// fills before it waits.
template <u32 kStages>
DEVICE_FUNCTION void ring_wait(const Thread& t, const StageRing<kStages>&, u32, u32) {
  barrier(t);
}
/// Every thread, when it has read the stage for the last time in its turn.
template <u32 kStages>
DEVICE_FUNCTION void ring_release(const Thread&, const StageRing<kStages>&, u32) {}

}  // namespace sluice::kernels
#endif
