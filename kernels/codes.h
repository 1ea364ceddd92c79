// How weights are read for the matrix units: a lane's 16 codes of a block of 64 inputs, as pairs of halves.
//
// Lane l of a SIMD group works on rows l / 4 and l / 4 + 8 of a tile of 16, and on inputs 16 (l % 4) .. + 15
// of a block of 64. Its codes make eight pairs: pair(word, j) holds the codes 8 word + j and 8 word + j + 4.
// That order is what the low-bit layout (operations.md) and nibbles give with few shifts and one mask, and
// the columns are brought into the same order (columns.h): a sum does not mind. Pairs of odd j hold 16 times
// their codes, since that is where their bits lie; columns have a 16th there. Products of pairs are in units
// of kUnit.
#pragma once

#include "dialect.h"

namespace sluice::kernels {

/// Numbers of one format in spec/formats.h.
constexpr i32 kFormatF32 = 0;
constexpr i32 kFormatBf16 = 1;
constexpr i32 kFormatQ4 = 2;
constexpr i32 kFormatQ8 = 3;
constexpr i32 kFormatQ3 = 4;
constexpr i32 kFormatQ2 = 5;

constexpr u32 kBlock = 64;         // inputs that share a scale at least
constexpr u32 kSegmentBlocks = 4;  // blocks that are summed before they are added to the total
constexpr u32 kSegment = kBlock * kSegmentBlocks;
constexpr u32 kSpanSegments = 10;  // segments that are summed before they are added to the result

/// The sum of an output's segments, given in ascending order: spans of ten, then the spans.
struct SpanSum {
  f32 total, span;
  DEVICE_FUNCTION void clear() {
    total = 0;
    span = 0;
  }
  /// `segment` may also be counted from the span's first.
  DEVICE_FUNCTION void add(i64 segment, f32 value) {
    if (static_cast<u32>(segment) % kSpanSegments == 0) {
      total += span;
      span = 0;
    }
    span += value;
  }
  DEVICE_FUNCTION f32 sum() const { return total + span; }
};

/// Four bits a code.
struct CodesQ4 {
  static constexpr f32 kUnit = kCodesPerHalf;  // what a scale counts in products of pairs
  static constexpr u32 kSideSet = 0;
  static constexpr i64 kBlockBytes = 32;
  u32 w[2];
  DEVICE_FUNCTION void load(Global<const u8> row, i64 block, u32 quarter) {
    const u32x2 v = load2(row, block * kBlockBytes + quarter * 8);
    w[0] = v.x;
    w[1] = v.y;
  }
  static constexpr u32 kPieceWords = 4;  // of a copy to the group's memory
  DEVICE_FUNCTION void load_shared(Shared<u32> row, u32 quarter) {
    const u32x2 v = load2(row, quarter * 2);
    w[0] = v.x;
    w[1] = v.y;
  }
  DEVICE_FUNCTION u32 pair(u32 word, u32 j, u32) const {
    const u32 shifted = j < 2 ? w[word] : w[word] >> 8;
    return half2_of_codes(shifted & (j % 2 == 0 ? 0x000f000fU : 0x00f000f0U));
  }
  static DEVICE_FUNCTION f32 scale(f32 s) { return s * kUnit; }
  static DEVICE_FUNCTION f32 bias(f32, f32 b) { return b; }
};

/// A lane's codes of the blocks of a segment: numbers at[] from the row's `from` on. They are the lane's own
/// after settle_blocks, which waits for them.
template <class Codes>
DEVICE_FUNCTION void load_blocks(const Thread& t, Global<const u8> from, const u32* at, Codes* codes) {
  UNROLL for (u32 b = 0; b < kSegmentBlocks; ++b) codes[b].load(from, at[b], t.lane % 4);
}
template <class Codes>
DEVICE_FUNCTION void settle_blocks(const Thread&, Codes*) {}

struct CodesQ8 {
  static constexpr f32 kUnit = 1.0F;  // what a scale counts in products of pairs
  static constexpr u32 kSideSet = 1;
  static constexpr i64 kBlockBytes = 64;
  u32 w[4];
  DEVICE_FUNCTION void load(Global<const u8> row, i64 block, u32 quarter) {
    const u32x4 v = load4(row, block * kBlockBytes + quarter * 16);
    w[0] = v.x;
    w[1] = v.y;
    w[2] = v.z;
    w[3] = v.w;
  }
  static constexpr u32 kPieceWords = 4;
  DEVICE_FUNCTION void load_shared(Shared<u32> row, u32 quarter) {
    const u32x4 v = load4(row, quarter * 4);
    w[0] = v.x;
    w[1] = v.y;
    w[2] = v.z;
    w[3] = v.w;
  }
  DEVICE_FUNCTION u32 pair(u32 word, u32 j, u32) const {
    const u32 codes = ((w[2 * word] >> (8 * j)) & 0xffU) | (((w[2 * word + 1] >> (8 * j)) & 0xffU) << 16);
    return half2_of_bytes(codes, j % 2 != 0);
  }
  static DEVICE_FUNCTION f32 scale(f32 s) { return s * kUnit; }
  static DEVICE_FUNCTION f32 bias(f32, f32 b) { return b; }
};

/// Where pair(word, j) lies in a word of upper bits: its two codes are two bytes apart.
DEVICE_FUNCTION u32 low_bit_place(u32 word, u32 j) {
  return 8 * (j / 2) + 2 * (word + 2 * (j % 2));
}

/// Codes of odd pairs count 16 times.
DEVICE_FUNCTION u32 in_place(u32 codes, u32 j) {
  return j % 2 == 0 ? codes : codes << 4;
}

struct CodesQ2 {
  static constexpr f32 kUnit = 4 * kCodesPerHalf;  // what a scale counts in products of pairs
  static constexpr u32 kSideSet = 3;
  static constexpr i64 kBlockBytes = 16;
  u32 w;
  DEVICE_FUNCTION void load(Global<const u8> row, i64 block, u32 quarter) {
    w = load1(row, block * kBlockBytes + quarter * 4);
  }
  static constexpr u32 kPieceWords = 4;
  DEVICE_FUNCTION void load_shared(Shared<u32> row, u32 quarter) { w = row[quarter]; }
  DEVICE_FUNCTION u32 pair(u32 word, u32 j, u32) const {
    // Codes of odd pairs lie four bits further up than those of even ones: where they are wanted.
    return half2_of_codes((w >> low_bit_place(word, j - j % 2)) & (j % 2 == 0 ? 0x00030003U : 0x00300030U));
  }
  static DEVICE_FUNCTION f32 scale(f32 s) { return s * kUnit; }
  static DEVICE_FUNCTION f32 bias(f32 s, f32 b) { return fma_f32(1.5F, s, b); }
};

/// Two lanes exchange words that only one of them is to have: afterwards `low` is of the first of the two
/// blocks and `high` of the second, both of the lane's own half.
DEVICE_FUNCTION void swap_halves(const Thread& t, u32 mask, u32& low, u32& high) {
  const bool upper = (t.lane & mask) != 0;
  const u32 other = simd_shuffle_xor(t, upper ? low : high, mask);
  low = upper ? other : low;
  high = upper ? high : other;
}
/// Four lanes read a row's segment in one go, a block each, and turn it about later: a read of four bytes
/// from each of eight rows would cost as much as one of sixteen.
DEVICE_FUNCTION void load_blocks(const Thread& t, Global<const u8> from, const u32* at, CodesQ2* codes) {
  const u32 quarter = t.lane % 4;
  const u32 block = quarter == 0 ? at[0] : quarter == 1 ? at[1] : quarter == 2 ? at[2] : at[3];
  const u32x4 v = load4(from, block * static_cast<u32>(CodesQ2::kBlockBytes));
  codes[0].w = v.x;
  codes[1].w = v.y;
  codes[2].w = v.z;
  codes[3].w = v.w;
}
DEVICE_FUNCTION void settle_blocks(const Thread& t, CodesQ2* codes) {
  swap_halves(t, 1, codes[0].w, codes[1].w);
  swap_halves(t, 1, codes[2].w, codes[3].w);
  swap_halves(t, 2, codes[0].w, codes[2].w);
  swap_halves(t, 2, codes[1].w, codes[3].w);
}

struct CodesQ3 {
  static constexpr f32 kUnit = 2 * kCodesPerHalf;  // what a scale counts in products of pairs
  static constexpr u32 kSideSet = 2;
  static constexpr i64 kBlockBytes = 24;
  u32 high, low;
  DEVICE_FUNCTION void load(Global<const u8> row, i64 block, u32 quarter) {
    const i64 chunk = block * kBlockBytes + (quarter / 2) * 12;
    high = load1(row, chunk + (quarter % 2) * 4);
    low = load1(row, chunk + 8);
  }
  static constexpr u32 kPieceWords = 2;
  DEVICE_FUNCTION void load_shared(Shared<u32> row, u32 quarter) {
    high = row[quarter / 2 * 3 + quarter % 2];
    low = row[quarter / 2 * 3 + 2];
  }
  DEVICE_FUNCTION u32 pair(u32 word, u32 j, u32 quarter) const {
    const u32 upper = (high >> low_bit_place(word, j)) & 0x00030003U;
    const u32 lowest = (low >> (8 * (j / 2) + 4 * (quarter % 2) + word + 2 * (j % 2))) & 0x00010001U;
    return half2_of_codes(in_place(2 * upper + lowest, j));
  }
  static DEVICE_FUNCTION f32 scale(f32 s) { return s * kUnit; }
  static DEVICE_FUNCTION f32 bias(f32 s, f32 b) { return fma_f32(0.5F, s, b); }
};

/// Which unit products are in, by Codes::kSideSet.
constexpr u32 kSideSets = 4;
DEVICE_FUNCTION f32 unit_of_sides(u32 set) {
  if (set == CodesQ4::kSideSet) return CodesQ4::kUnit;
  if (set == CodesQ8::kSideSet) return CodesQ8::kUnit;
  return set == CodesQ3::kSideSet ? CodesQ3::kUnit : CodesQ2::kUnit;
}

/// One code by its place in a row, for what is not worth the matrix units.
DEVICE_FUNCTION u32 code_at(i32 format, Global<const u8> row, i64 i) {
  if (format == kFormatQ4) return (row[i / 2] >> (4 * (i % 2))) & 15U;
  if (format == kFormatQ8) return row[i];
  const u32 c = static_cast<u32>(i % 32);
  const u32 r = c % 16;
  const u32 p = r / 8 + 2 * (r % 2);
  const u32 byte = r / 2 % 4;
  if (format == kFormatQ2) {
    return (row[i / 32 * 8 + c / 16 * 4 + byte] >> (2 * p)) & 3U;
  }
  const i64 chunk = i / 32 * 12;
  const u32 upper = (row[chunk + c / 16 * 4 + byte] >> (2 * p)) & 3U;
  const u32 lowest = (row[chunk + 8 + byte] >> (4 * (c / 16) + p)) & 1U;
  return 2 * upper + lowest;
}

/// A weight matrix [out][in] (backend/types.h).
struct Weights {
  Global<const u8> data;
  Global<const u16> scales, biases;  // bf16 [out][in / group]; none for float formats
  i64 out, in;
  i64 row_bytes;
  i32 format, group;
  u32 groups;  // of a row: in / group
  u32 per;  // blocks of 64 inputs a group, where there are whole ones: divisions are what a lane is slow at
};

DEVICE_FUNCTION f32 weight_at(const Weights& w, i64 row, i64 i) {
  const Global<const u8> at = w.data + row * w.row_bytes;
  if (w.format == kFormatF32) return retype<const f32>(at)[i];
  if (w.format == kFormatBf16) return f32_of_bf16(retype<const u16>(at)[i]);
  const i64 group = row * w.groups + static_cast<u32>(i) / static_cast<u32>(w.group);
  const f32 s = f32_of_bf16(w.scales[group]);
  const f32 b = f32_of_bf16(w.biases[group]);
  const f32 q = static_cast<f32>(code_at(w.format, at, i));
  if (w.format == kFormatQ3) return fma_f32(fma_f32(2.0F, q, 0.5F), s, b);
  if (w.format == kFormatQ2) return fma_f32(fma_f32(4.0F, q, 1.5F), s, b);
  return fma_f32(q, s, b);
}

}  // namespace sluice::kernels
