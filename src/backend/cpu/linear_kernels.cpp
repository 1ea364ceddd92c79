#include "backend/cpu/linear_kernels.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/simd_targets.h"
#include "hwy/cache_control.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/linear_kernels.cpp"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/decoders-inl.h"
#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {
namespace {

constexpr int kVecs = static_cast<int>(kChunk / kLanes);  // vectors in a chunk

// --- few rows: weights live in registers only ----------------------------------------------------------

// Fetches what the next tile will read. Rows are short streams, which hardware prefetchers see too late.
template <class T>
HWY_INLINE void prefetch(const T* from, std::int64_t count) {
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
  const std::int64_t end = count * static_cast<std::int64_t>(sizeof(T));
  for (std::int64_t i = 0; i < end; i += 64) hwy::Prefetch(bytes + i);
}

// Outputs that a pass holds accumulators for: as many as leave registers for the weights.
constexpr int outputs_at_once(int rows) {
  if (kLanes == 16) return rows <= 4 ? 4 : 2;
  if (rows <= 2) return 4;
  return rows <= 4 ? 2 : 1;
}

struct BlockScales {
  alignas(64) float scale[kFusedOutputs][kMaxGroups];
  alignas(64) float bias[kFusedOutputs][kMaxGroups];
};

// Adds one block of `chunks` chunks to the totals of O outputs from `o0` on. codes[o] and x[r] point to the
// block's start. kGroup: chunks of a group, if known when compiled; 0 if not.
template <class Decoder, int R, int O, int kGroup>
HWY_INLINE void fused_block(const Decoder& decoder, const std::uint8_t* const* codes,
                            const BlockScales& scales, const BlockGroups& groups, std::int64_t chunks,
                            const float* const* x, int o0, VF (*totals)[R]) {
  VF acc[O][R];
  SLUICE_UNROLL
  for (int o = 0; o < O; ++o) {
    SLUICE_UNROLL
    for (int r = 0; r < R; ++r) acc[o][r] = zero();
  }
  std::int64_t chunk = 0;
  std::int64_t end = Decoder::kGrouped ? std::min(groups.head, chunks) : chunks;
  for (int g = 0; chunk < chunks; ++g) {
    typename Decoder::Group group[O];
    SLUICE_UNROLL
    for (int o = 0; o < O; ++o) group[o] = decoder.group(scales.scale[o0 + o][g], scales.bias[o0 + o][g]);
    const auto one_chunk = [&](std::int64_t c) HWY_ATTR {
      SLUICE_UNROLL_WIDE
      for (int j = 0; j < kVecs; ++j) {
        SLUICE_UNROLL
        for (int o = 0; o < O; ++o) {
          const VF w = decoder.vec(codes[o0 + o] + c * Decoder::kBytes, group[o], j);
          SLUICE_UNROLL
          for (int r = 0; r < R; ++r) {
            acc[o][r] = hn::MulAdd(w, load(x[r] + c * kChunk + j * kLanes), acc[o][r]);
          }
        }
      }
    };
    if constexpr (kGroup != 0) {
      SLUICE_UNROLL
      for (int c = 0; c < kGroup; ++c) one_chunk(chunk + c);
      chunk += kGroup;
    } else {
      for (; chunk < end; ++chunk) one_chunk(chunk);
      end = std::min(end + groups.chunks, chunks);
    }
  }
  SLUICE_UNROLL
  for (int o = 0; o < O; ++o) {
    SLUICE_UNROLL
    for (int r = 0; r < R; ++r) totals[o0 + o][r] = hn::Add(totals[o0 + o][r], acc[o][r]);
  }
}

// Outputs [first, first + 4), or fewer at the matrix's end, for exactly R rows; to [R][kPanelOutputs].
template <class Decoder, int R, int kGroup>
HWY_INLINE void fused_tile(const Decoder& decoder, const Matrix& w, std::int64_t first, std::int64_t outputs,
                           const float* const* x, float* to) {
  constexpr int kO = outputs_at_once(R);
  const std::int64_t row_bytes = w.row_bytes();
  const std::int64_t row_groups = Decoder::kGrouped ? w.in / w.group : 0;
  const auto* data = reinterpret_cast<const std::uint8_t*>(w.data.address());
  std::int64_t index[kFusedOutputs];  // outputs past the end repeat the last one; their sums go nowhere
  for (std::int64_t o = 0; o < kFusedOutputs; ++o) index[o] = first + std::min(o, outputs - 1);
  VF totals[kFusedOutputs][R];
  for (int o = 0; o < kFusedOutputs; ++o) {
    for (int r = 0; r < R; ++r) totals[o][r] = zero();
  }
  BlockScales scales;
  BlockGroups groups{0, 0, 1, 1};
  const std::uint8_t* codes[kFusedOutputs];
  const float* at[R];
  const std::int64_t whole = w.in / kChunk;
  if constexpr (Decoder::kGrouped) {
    prefetch(w.scales.address() + (first + kFusedOutputs) * row_groups, kFusedOutputs * row_groups);
    prefetch(w.biases.address() + (first + kFusedOutputs) * row_groups, kFusedOutputs * row_groups);
  }
  for (std::int64_t chunk = 0; chunk < whole; chunk += kBlockChunks) {
    const std::int64_t chunks = std::min(kBlockChunks, whole - chunk);
    for (int o = 0; o < kFusedOutputs; ++o) {
      codes[o] = data + index[o] * row_bytes + chunk * Decoder::kBytes;
      prefetch(codes[o] + kFusedOutputs * row_bytes, chunks * Decoder::kBytes);
    }
    for (int r = 0; r < R; ++r) at[r] = x[r] + chunk * kChunk;
    if constexpr (Decoder::kGrouped) {
      groups = groups_of(w, chunk, chunks);
      for (int o = 0; o < kFusedOutputs; ++o) {
        const std::int64_t group = index[o] * row_groups + groups.first;
        load_scales(w.scales.address() + group, groups.count, scales.scale[o]);
        load_scales(w.biases.address() + group, groups.count, scales.bias[o]);
      }
    }
    SLUICE_UNROLL
    for (int o = 0; o < kFusedOutputs; o += kO) {
      fused_block<Decoder, R, kO, kGroup>(decoder, codes, scales, groups, chunks, at, o, totals);
    }
  }
  if constexpr (!Decoder::kGrouped) {
    if (whole * kChunk != w.in) {  // the incomplete chunk, from copies with zeros behind them
      alignas(64) std::uint8_t tail[kFusedOutputs][Decoder::kBytes] = {};
      for (int o = 0; o < kFusedOutputs; ++o) {
        std::memcpy(tail[o], data + index[o] * row_bytes + whole * Decoder::kBytes,
                    static_cast<std::size_t>(row_bytes - whole * Decoder::kBytes));
        codes[o] = tail[o];
      }
      for (int r = 0; r < R; ++r) at[r] = x[r] + whole * kChunk;
      SLUICE_UNROLL
      for (int o = 0; o < kFusedOutputs; o += kO) {
        fused_block<Decoder, R, kO, 0>(decoder, codes, scales, groups, 1, at, o, totals);
      }
    }
  }
  SLUICE_UNROLL
  for (int r = 0; r < R; ++r) {
    hn::StoreU(sum4(totals[0][r], totals[1][r], totals[2][r], totals[3][r]), D4(), to + r * kPanelOutputs);
  }
}

template <class Decoder, int R, int kGroup>
HWY_NOINLINE void fused_range(const Matrix& w, std::int64_t first, std::int64_t last, const float* const* x,
                              std::int64_t rows, float* const* y) {
  const Decoder decoder;
  const float* all[R];  // rows past the end repeat the last one
  for (std::int64_t r = 0; r < R; ++r) all[r] = x[std::min(r, rows - 1)];
  // Outputs go to y by the line: rows of y often lie a power of two apart and would evict each other.
  alignas(64) float outputs[R][kPanelOutputs];
  for (std::int64_t begin = first; begin < last; begin += kPanelOutputs) {
    const std::int64_t end = std::min(begin + kPanelOutputs, last);
    for (std::int64_t o = begin; o < end; o += kFusedOutputs) {
      fused_tile<Decoder, R, kGroup>(decoder, w, o, std::min(kFusedOutputs, end - o), all,
                                     outputs[0] + (o - begin));
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      std::memcpy(y[r] + begin, outputs[r], static_cast<std::size_t>(end - begin) * sizeof(float));
    }
  }
}

// --- many rows: a panel of weights is decoded block by block into scratch ---------------------------------

template <class Decoder>
HWY_INLINE void decode_block(const Decoder& decoder, const std::uint8_t* codes, const float* scale,
                             const float* bias, const BlockGroups& groups, std::int64_t chunks, float* to) {
  std::int64_t chunk = 0;
  std::int64_t end = Decoder::kGrouped ? std::min(groups.head, chunks) : chunks;
  for (int g = 0; chunk < chunks; ++g) {
    const auto group = decoder.group(scale[g], bias[g]);
    for (; chunk < end; ++chunk) {
      SLUICE_UNROLL
      for (int j = 0; j < kVecs; ++j) {
        store(decoder.vec(codes + chunk * Decoder::kBytes, group, j), to + chunk * kChunk + j * kLanes);
      }
    }
    end = std::min(end + groups.chunks, chunks);
  }
}

constexpr int kMicroRows = 6;
constexpr int kMicroOutputs = kLanes == 16 ? 4 : 2;
constexpr std::int64_t kPanelStride = kBlockChunks * kChunk;  // floats between a panel's weight rows
constexpr std::int64_t kTotalsStride = kMaxRows + kMicroRows;

// totals[o][r] += one block; weights [kMicroOutputs][kPanelStride].
HWY_INLINE void micro_block(const float* weights, const float* const* x, std::int64_t vectors,
                            float* totals) {
  VF acc[kMicroOutputs][kMicroRows];
  SLUICE_UNROLL
  for (int o = 0; o < kMicroOutputs; ++o) {
    SLUICE_UNROLL
    for (int r = 0; r < kMicroRows; ++r) acc[o][r] = zero();
  }
  for (std::int64_t v = 0; v < vectors; ++v) {
    VF w[kMicroOutputs];
    SLUICE_UNROLL
    for (int o = 0; o < kMicroOutputs; ++o) w[o] = load(weights + o * kPanelStride + v * kLanes);
    SLUICE_UNROLL
    for (int r = 0; r < kMicroRows; ++r) {
      const VF in = load(x[r] + v * kLanes);
      SLUICE_UNROLL
      for (int o = 0; o < kMicroOutputs; ++o) acc[o][r] = hn::MulAdd(w[o], in, acc[o][r]);
    }
  }
  SLUICE_UNROLL
  for (int o = 0; o < kMicroOutputs; ++o) {
    SLUICE_UNROLL
    for (int r = 0; r < kMicroRows; ++r) {
      float* total = totals + (o * kTotalsStride + r) * kLanes;
      store(hn::Add(load(total), acc[o][r]), total);
    }
  }
}

// Outputs [first, first + outputs), at most a panel.
template <class Decoder>
HWY_INLINE void panel(const Decoder& decoder, const Matrix& w, std::int64_t first, std::int64_t outputs,
                      const float* const* x, std::int64_t rows, float* const* y, float* scratch) {
  float* weights = scratch;                                // [kPanelOutputs][kPanelStride]
  float* totals = scratch + kPanelOutputs * kPanelStride;  // [kPanelOutputs][kTotalsStride][kLanes]
  const std::int64_t used = (outputs + kMicroOutputs - 1) / kMicroOutputs * kMicroOutputs;
  std::fill_n(totals, used * kTotalsStride * kLanes, 0.0F);
  const auto* data = reinterpret_cast<const std::uint8_t*>(w.data.address());
  const std::int64_t row_bytes = w.row_bytes();
  const std::int64_t row_groups = Decoder::kGrouped ? w.in / w.group : 0;
  const std::int64_t all_chunks = padded(w.in) / kChunk;
  const std::int64_t whole = w.in / kChunk;
  if constexpr (Decoder::kGrouped) {
    prefetch(w.scales.address() + (first + kPanelOutputs) * row_groups, kPanelOutputs * row_groups);
    prefetch(w.biases.address() + (first + kPanelOutputs) * row_groups, kPanelOutputs * row_groups);
  }
  alignas(64) float scale[kMaxGroups] = {};
  alignas(64) float bias[kMaxGroups] = {};
  const float* at[kMicroRows];
  for (std::int64_t chunk = 0; chunk < all_chunks;) {
    // The incomplete chunk is a block of its own, as in fused_tile.
    const bool tail = chunk >= whole;
    const std::int64_t chunks = tail ? 1 : std::min(kBlockChunks, whole - chunk);
    BlockGroups groups{0, 0, 1, 1};
    if constexpr (Decoder::kGrouped) groups = groups_of(w, chunk, chunks);
    const bool last_block = chunk + chunks >= whole;
    for (std::int64_t o = 0; o < outputs; ++o) {
      const std::uint8_t* codes = data + (first + o) * row_bytes + chunk * Decoder::kBytes;
      prefetch(last_block ? data + (first + kPanelOutputs + o) * row_bytes : codes + chunks * Decoder::kBytes,
               kBlockChunks * Decoder::kBytes);
      alignas(64) std::uint8_t copy[Decoder::kBytes];
      if constexpr (Decoder::kGrouped) {
        const std::int64_t group = (first + o) * row_groups + groups.first;
        load_scales(w.scales.address() + group, groups.count, scale);
        load_scales(w.biases.address() + group, groups.count, bias);
      } else if (tail) {
        std::memset(copy, 0, sizeof copy);
        std::memcpy(copy, codes, static_cast<std::size_t>(row_bytes - whole * Decoder::kBytes));
        codes = copy;
      }
      decode_block(decoder, codes, scale, bias, groups, chunks, weights + o * kPanelStride);
    }
    for (std::int64_t r = 0; r < rows; r += kMicroRows) {
      for (std::int64_t i = 0; i < kMicroRows; ++i) at[i] = x[std::min(r + i, rows - 1)] + chunk * kChunk;
      for (std::int64_t o = 0; o < used; o += kMicroOutputs) {
        micro_block(weights + o * kPanelStride, at, chunks * kVecs,
                    totals + (o * kTotalsStride + r) * kLanes);
      }
    }
    chunk += chunks;
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    alignas(64) float row[kPanelOutputs];
    for (std::int64_t o = 0; o < outputs; o += 4) {
      const auto total = [&](std::int64_t i) HWY_ATTR {
        return load(totals + (std::min(o + i, outputs - 1) * kTotalsStride + r) * kLanes);
      };
      hn::StoreU(sum4(total(0), total(1), total(2), total(3)), D4(), row + o);
    }
    std::memcpy(y[r] + first, row, static_cast<std::size_t>(outputs) * sizeof(float));
  }
}

template <class Decoder>
HWY_NOINLINE void panel_range(const Matrix& w, std::int64_t first, std::int64_t last, const float* const* x,
                              std::int64_t rows, float* const* y, float* scratch) {
  const Decoder decoder;
  for (std::int64_t o = first; o < last; o += kPanelOutputs) {
    panel(decoder, w, o, std::min(kPanelOutputs, last - o), x, rows, y, scratch);
  }
}

// Row counts between those compiled repeat their last row. Wide vectors with the common group size, where
// time goes, have more of them.
template <class Decoder>
void range(const Matrix& w, std::int64_t first, std::int64_t last, const float* const* x, std::int64_t rows,
           float* const* y, float* scratch) {
  if (rows > kFusedRows) return panel_range<Decoder>(w, first, last, x, rows, y, scratch);
  if constexpr (Decoder::kGrouped && kLanes == 16) {
    if (w.group == 2 * kChunk) {
      if (rows > 6) return fused_range<Decoder, 8, 2>(w, first, last, x, rows, y);
      if (rows > 4) return fused_range<Decoder, 6, 2>(w, first, last, x, rows, y);
      if (rows > 3) return fused_range<Decoder, 4, 2>(w, first, last, x, rows, y);
      if (rows > 2) return fused_range<Decoder, 3, 2>(w, first, last, x, rows, y);
      if (rows > 1) return fused_range<Decoder, 2, 2>(w, first, last, x, rows, y);
      return fused_range<Decoder, 1, 2>(w, first, last, x, rows, y);
    }
  }
  if (rows > 4) return fused_range<Decoder, 8, 0>(w, first, last, x, rows, y);
  if (rows > 1) return fused_range<Decoder, 4, 0>(w, first, last, x, rows, y);
  fused_range<Decoder, 1, 0>(w, first, last, x, rows, y);
}

template <class Decoder>
void decode(const Matrix& w, std::int64_t row, float* to) {
  const Decoder decoder;
  const auto* codes = reinterpret_cast<const std::uint8_t*>(w.data.address()) + row * w.row_bytes();
  const std::int64_t whole = w.in / kChunk;
  alignas(64) float scale[kMaxGroups] = {};
  alignas(64) float bias[kMaxGroups] = {};
  alignas(64) float values[kBlockChunks * kChunk];
  for (std::int64_t chunk = 0; chunk < whole; chunk += kBlockChunks) {
    const std::int64_t chunks = std::min(kBlockChunks, whole - chunk);
    BlockGroups groups{0, 0, 1, 1};
    if constexpr (Decoder::kGrouped) {
      groups = groups_of(w, chunk, chunks);
      const std::int64_t group = row * (w.in / w.group) + groups.first;
      load_scales(w.scales.address() + group, groups.count, scale);
      load_scales(w.biases.address() + group, groups.count, bias);
    }
    decode_block(decoder, codes + chunk * Decoder::kBytes, scale, bias, groups, chunks, values);
    for (std::int64_t c = 0; c < chunks; ++c) {
      for (std::int64_t i = 0; i < kChunk; ++i) {
        to[(chunk + c) * kChunk + i] = values[c * kChunk + position_in_chunk(Decoder::kOrder, i)];
      }
    }
  }
  if constexpr (!Decoder::kGrouped) {
    if (whole * kChunk != w.in) {
      alignas(64) std::uint8_t tail[Decoder::kBytes] = {};
      std::memcpy(tail, codes + whole * Decoder::kBytes,
                  static_cast<std::size_t>(w.row_bytes() - whole * Decoder::kBytes));
      decode_block(decoder, tail, scale, bias, {0, 0, 1, 1}, 1, values);
      std::copy_n(values, w.in - whole * kChunk, to + whole * kChunk);
    }
  }
}

// Position 4 m + w from input 8 w + m: two 4 x 4 transpositions.
HWY_INLINE void arrange_nibbles(const float* x, float* to) {
  const D4 d;
  const hn::Repartition<std::uint64_t, D4> d64;
  SLUICE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const V4 a = hn::LoadU(d, x + 4 * half);
    const V4 b = hn::LoadU(d, x + 8 + 4 * half);
    const V4 c = hn::LoadU(d, x + 16 + 4 * half);
    const V4 e = hn::LoadU(d, x + 24 + 4 * half);
    const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(d, a, b));
    const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(d, a, b));
    const auto ce_low = hn::BitCast(d64, hn::InterleaveLower(d, c, e));
    const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(d, c, e));
    float* out = to + 16 * half;
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_low, ce_low)), d, out);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_low, ce_low)), d, out + 4);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, ab_high, ce_high)), d, out + 8);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, ab_high, ce_high)), d, out + 12);
  }
}

}  // namespace

void linear_range(const Matrix& w, std::int64_t first, std::int64_t last, const float* const* x,
                  std::int64_t rows, float* const* y, float* scratch) {
  switch (w.format) {
    case Format::kF32:
      return range<F32Decoder>(w, first, last, x, rows, y, scratch);
    case Format::kBf16:
      return range<Bf16Decoder>(w, first, last, x, rows, y, scratch);
    case Format::kQ4:
      return range<Q4Decoder>(w, first, last, x, rows, y, scratch);
    case Format::kQ8:
      return range<Q8Decoder>(w, first, last, x, rows, y, scratch);
    case Format::kQ3:
      return range<LowBitDecoder<true>>(w, first, last, x, rows, y, scratch);
    case Format::kQ2:
      return range<LowBitDecoder<false>>(w, first, last, x, rows, y, scratch);
  }
}

void decode_row(const Matrix& w, std::int64_t row, float* to) {
  switch (w.format) {
    case Format::kF32:
      return decode<F32Decoder>(w, row, to);
    case Format::kBf16:
      return decode<Bf16Decoder>(w, row, to);
    case Format::kQ4:
      return decode<Q4Decoder>(w, row, to);
    case Format::kQ8:
      return decode<Q8Decoder>(w, row, to);
    case Format::kQ3:
      return decode<LowBitDecoder<true>>(w, row, to);
    case Format::kQ2:
      return decode<LowBitDecoder<false>>(w, row, to);
  }
}

void arrange(Order order, const float* x, std::int64_t in, float* to) {
  const std::int64_t whole = in / kChunk * kChunk;
  if (order == Order::kNatural) {
    std::memcpy(to, x, static_cast<std::size_t>(in) * sizeof(float));
  } else if (order == Order::kNibbles) {
    for (std::int64_t i = 0; i < whole; i += kChunk) arrange_nibbles(x + i, to + i);
  } else {
    for (std::int64_t i = 0; i < whole; i += kChunk) {
      SLUICE_UNROLL
      for (std::int64_t j = 0; j < kChunk; ++j) to[i + position_in_chunk(Order::kLowBits, j)] = x[i + j];
    }
  }
  if (order != Order::kNatural && whole != in) {
    for (std::int64_t j = whole; j < in; ++j) to[whole + position_in_chunk(order, j - whole)] = x[j];
  }
  for (std::int64_t j = in; j < padded(in); ++j) to[whole + position_in_chunk(order, j - whole)] = 0;
}

}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::backend::cpu {

HWY_EXPORT(linear_range);
HWY_EXPORT(decode_row);
HWY_EXPORT(arrange);

void linear_range(const Matrix& w, std::int64_t first, std::int64_t last, const float* const* x,
                  std::int64_t rows, float* const* y, float* scratch) {
  HWY_DYNAMIC_DISPATCH(linear_range)(w, first, last, x, rows, y, scratch);
}
void decode_row(const Matrix& w, std::int64_t row, float* to) {
  HWY_DYNAMIC_DISPATCH(decode_row)(w, row, to);
}
void arrange(Order order, const float* x, std::int64_t in, float* to) {
  HWY_DYNAMIC_DISPATCH(arrange)(order, x, in, to);
}
std::int64_t compiled_targets() {
  return HWY_TARGETS;
}

}  // namespace sluice::backend::cpu
#endif  // HWY_ONCE
