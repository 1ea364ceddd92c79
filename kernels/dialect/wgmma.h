// The words of dialect/wide.h on Hopper: multiplications of warpgroups, and bulk copies.
#pragma once

namespace sluice::kernels {

#define SLUICE_WGMMA(a, columns, adds)                            \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "           \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
  "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "  \
  "%26, %27, %28, %29, %30, %31}, {" a "}, " columns ", " adds ", 1, 1, 0;\n"
DEVICE_FUNCTION void wide_multiply(const Thread&, WideC& c, const WideA& a, Shared<u32> columns) {
  // Rows of 128 bytes, eight of them 1 KiB, with 128-byte swizzles. The steps of 16 inputs lie 32 bytes
  // apart.
  const u32 at = static_cast<u32>(__cvta_generic_to_shared(columns)) / 16 % 0x4000 | 0x10000U;
  asm volatile(
      "{\n"
      ".reg .b64 d0, d1, d2, d3;\n"
      ".reg .b32 l1, l2, l3;\n"
      "add.u32 l1, %48, 2;\n"
      "add.u32 l2, %48, 4;\n"
      "add.u32 l3, %48, 6;\n"
      "mov.b64 d0, {%48, 0x40000040};\n"
      "mov.b64 d1, {l1, 0x40000040};\n"
      "mov.b64 d2, {l2, 0x40000040};\n"
      "mov.b64 d3, {l3, 0x40000040};\n"
      "wgmma.fence.sync.aligned;\n"
      SLUICE_WGMMA("%32, %33, %34, %35", "d0", "0")
      SLUICE_WGMMA("%36, %37, %38, %39", "d1", "1")
      SLUICE_WGMMA("%40, %41, %42, %43", "d2", "1")
      SLUICE_WGMMA("%44, %45, %46, %47", "d3", "1")
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      : "=&f"(c.tile[0].r[0]), "=&f"(c.tile[0].r[1]), "=&f"(c.tile[0].r[2]), "=&f"(c.tile[0].r[3]),
        "=&f"(c.tile[1].r[0]), "=&f"(c.tile[1].r[1]), "=&f"(c.tile[1].r[2]), "=&f"(c.tile[1].r[3]),
        "=&f"(c.tile[2].r[0]), "=&f"(c.tile[2].r[1]), "=&f"(c.tile[2].r[2]), "=&f"(c.tile[2].r[3]),
        "=&f"(c.tile[3].r[0]), "=&f"(c.tile[3].r[1]), "=&f"(c.tile[3].r[2]), "=&f"(c.tile[3].r[3]),
        "=&f"(c.tile[4].r[0]), "=&f"(c.tile[4].r[1]), "=&f"(c.tile[4].r[2]), "=&f"(c.tile[4].r[3]),
        "=&f"(c.tile[5].r[0]), "=&f"(c.tile[5].r[1]), "=&f"(c.tile[5].r[2]), "=&f"(c.tile[5].r[3]),
        "=&f"(c.tile[6].r[0]), "=&f"(c.tile[6].r[1]), "=&f"(c.tile[6].r[2]), "=&f"(c.tile[6].r[3]),
        "=&f"(c.tile[7].r[0]), "=&f"(c.tile[7].r[1]), "=&f"(c.tile[7].r[2]), "=&f"(c.tile[7].r[3])
      : "r"(a.step[0].r[0]), "r"(a.step[0].r[1]), "r"(a.step[0].r[2]), "r"(a.step[0].r[3]),
        "r"(a.step[1].r[0]), "r"(a.step[1].r[1]), "r"(a.step[1].r[2]), "r"(a.step[1].r[3]),
        "r"(a.step[2].r[0]), "r"(a.step[2].r[1]), "r"(a.step[2].r[2]), "r"(a.step[2].r[3]),
        "r"(a.step[3].r[0]), "r"(a.step[3].r[1]), "r"(a.step[3].r[2]), "r"(a.step[3].r[3]),
        "r"(at)
      : "memory");
}
#undef SLUICE_WGMMA
template <u32 kLeft>
DEVICE_FUNCTION void wide_wait(const Thread&, WideC& c) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
  // Apart, so that no copy of c is made before the wait.
  asm volatile(""
               : "+f"(c.tile[0].r[0]), "+f"(c.tile[0].r[1]), "+f"(c.tile[0].r[2]), "+f"(c.tile[0].r[3]),
                 "+f"(c.tile[1].r[0]), "+f"(c.tile[1].r[1]), "+f"(c.tile[1].r[2]), "+f"(c.tile[1].r[3]),
                 "+f"(c.tile[2].r[0]), "+f"(c.tile[2].r[1]), "+f"(c.tile[2].r[2]), "+f"(c.tile[2].r[3]),
                 "+f"(c.tile[3].r[0]), "+f"(c.tile[3].r[1]), "+f"(c.tile[3].r[2]), "+f"(c.tile[3].r[3]),
                 "+f"(c.tile[4].r[0]), "+f"(c.tile[4].r[1]), "+f"(c.tile[4].r[2]), "+f"(c.tile[4].r[3]),
                 "+f"(c.tile[5].r[0]), "+f"(c.tile[5].r[1]), "+f"(c.tile[5].r[2]), "+f"(c.tile[5].r[3]),
                 "+f"(c.tile[6].r[0]), "+f"(c.tile[6].r[1]), "+f"(c.tile[6].r[2]), "+f"(c.tile[6].r[3]),
                 "+f"(c.tile[7].r[0]), "+f"(c.tile[7].r[1]), "+f"(c.tile[7].r[2]), "+f"(c.tile[7].r[3]));
}
DEVICE_FUNCTION void wide_keep(WideA& a) {
  asm volatile(""
               : "+r"(a.step[0].r[0]), "+r"(a.step[0].r[1]), "+r"(a.step[0].r[2]), "+r"(a.step[0].r[3]),
                 "+r"(a.step[1].r[0]), "+r"(a.step[1].r[1]), "+r"(a.step[1].r[2]), "+r"(a.step[1].r[3]),
                 "+r"(a.step[2].r[0]), "+r"(a.step[2].r[1]), "+r"(a.step[2].r[2]), "+r"(a.step[2].r[3]),
                 "+r"(a.step[3].r[0]), "+r"(a.step[3].r[1]), "+r"(a.step[3].r[2]), "+r"(a.step[3].r[3]));
}

// --- the ring of stages, by bulk copies that barriers in memory count ---
DEVICE_FUNCTION u32 ring_address(Shared<u64> at) {
  return static_cast<u32>(__cvta_generic_to_shared(at));
}
DEVICE_FUNCTION void ring_await(Shared<u64> at, u32 parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n"
      "}\n" ::"r"(ring_address(at)),
      "r"(parity)
      : "memory");
}
template <u32 kStages>
DEVICE_FUNCTION void ring_begin(const Thread& t, const StageRing<kStages>& ring, u32 simds) {
  if (t.index == 0) {
    for (u32 i = 0; i < kStages; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(ring_address(ring.marks + i)) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ring_address(ring.marks + kStages + i)),
                   "r"(simds)
                   : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
}
template <u32 kStages>
DEVICE_FUNCTION void ring_open(const StageRing<kStages>& ring, u32 stage, u32 turn, u32 words) {
  if (turn > 0) ring_await(ring.marks + kStages + stage, (turn & 1U) ^ 1U);
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ring_address(ring.marks + stage)),
      "r"(words * 4)
      : "memory");
}
template <u32 kStages>
DEVICE_FUNCTION void ring_fill(const StageRing<kStages>& ring, u32 stage, Shared<u32> to,
                               Global<const u32> from, u32 words) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          static_cast<u32>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(words * 4), "r"(ring_address(ring.marks + stage))
      : "memory");
}
template <u32 kStages>
DEVICE_FUNCTION void ring_wait(const Thread&, const StageRing<kStages>& ring, u32 stage, u32 turn) {
  ring_await(ring.marks + stage, turn & 1U);
}
template <u32 kStages>
DEVICE_FUNCTION void ring_release(const Thread& t, const StageRing<kStages>& ring, u32 stage) {
  __syncwarp();
  if (t.lane == 0) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(ring_address(ring.marks + kStages + stage))
                 : "memory");
  }
}

}  // namespace sluice::kernels
