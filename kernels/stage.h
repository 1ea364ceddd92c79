// Rounded rows in a group's memory, for the few rows of a decode step (columns.h): each group rounds for
// itself what all its SIMD groups then multiply with.
//
// A unit is one segment of one row: a SIMD group rounds it. Units lie one after another, [segment][row], each
// 128 words in the order of gemm.h's chunks, with four sums and the power of two that undoes its scale.
//
// What counts here is how few instructions one SIMD group runs from the row to the result: a step's kernels
// are short, and a few SIMD groups on a multiprocessor cannot hide each other's latencies.
#pragma once

#include "matvec.h"

namespace sluice::kernels {

constexpr u32 kUnitWords = 32 * kSegmentBlocks;
constexpr u32 kUnitSides =
    8;  // sums of its blocks, then the scale, then what is not used; a multiple of four

/// What a lane holds of a unit: of block l / 8, quarter l / 2 % 4, the pairs of chunk h = l % 2, that is the
/// values 2 h, 2 h + 1, 2 h + 4, 2 h + 5 of its 16 and those 8 further on.
struct UnitValues {
  f32 v[8];
};
/// Where the lane's values begin in a unit: pairs of them lie there and 4, 8 and 12 further on.
DEVICE_FUNCTION u32 unit_place(const Thread& t) {
  return t.lane / 2 * 16 + t.lane % 2 * 2;
}

/// A lane's part of a rounded unit: its chunk, the sum of its block, and what undoes the scale.
struct RoundedUnit {
  u32x4 chunk;
  f32 sum, down;
};
/// Where a lane's chunk lies in a unit.
DEVICE_FUNCTION u32 chunk_place(const Thread& t) {
  return t.lane / 8 * 32 + (t.lane % 2 * 4 + t.lane / 2 % 4) * 4;
}
/// Rounds one unit, by all lanes of a SIMD group.
DEVICE_FUNCTION RoundedUnit round_unit(const Thread& t, const UnitValues& x) {
  f32 most = 0;
  UNROLL for (u32 i = 0; i < 8; ++i) most = max_f32(most, abs_f32(x.v[i]));
  UNROLL for (u32 mask = 1; mask < 32; mask *= 2) most = max_f32(most, simd_shuffle_xor(t, most, mask));
  const PowerOfTwo scale = scale_for(most);
  BlockColumns<1> columns;
  // The order of round_block: pairs 2 h, 2 h + 1, 4 + 2 h, 5 + 2 h.
  f32 sum = 0;
  sum += round_pair<1>(0, x.v[0], x.v[2], scale.up, columns);
  sum += round_pair<1>(1, x.v[1], x.v[3], scale.up, columns);
  sum += round_pair<1>(4, x.v[4], x.v[6], scale.up, columns);
  sum += round_pair<1>(5, x.v[5], x.v[7], scale.up, columns);
  sum += simd_shuffle_xor(t, sum, 1);
  sum += simd_shuffle_xor(t, sum, 2);
  sum += simd_shuffle_xor(t, sum, 4);
  RoundedUnit unit;
  unit.chunk.x = columns.pair[0][0];
  unit.chunk.y = columns.pair[0][4];
  unit.chunk.z = columns.pair[0][1];
  unit.chunk.w = columns.pair[0][5];
  unit.sum = sum;
  unit.down = scale.down;
  return unit;
}
/// Rounds one unit into the group's memory. The power of two `scaled` (Codes::kUnit) is taken from the
/// products here, once, instead of from every scale.
DEVICE_FUNCTION void stage_unit(const Thread& t, const UnitValues& x, f32 scaled, Shared<f32> words,
                                Shared<f32> sides, u32 unit) {
  const RoundedUnit rounded = round_unit(t, x);
  store4(words, unit * kUnitWords + chunk_place(t), rounded.chunk);
  if (t.lane % 8 == 0) sides[unit * kUnitSides + t.lane / 8] = rounded.sum / scaled;
  if (t.lane == 0) sides[unit * kUnitSides + kSegmentBlocks] = rounded.down * scaled;
}

/// Rows of x [..][in]: number `index[i]` for column i, or `base + i` without an index.
struct StagedRows {
  Global<const f32> x;
  Global<const u32> index;
  u32 base;
  DEVICE_FUNCTION u32 row(u32 column) const {
    return index == nullptr ? base + column : static_cast<u32>(index[column]);
  }
};

/// What a lane holds of unit number `unit` of segments first .. of `rows` columns; nothing from `units` on.
DEVICE_FUNCTION UnitValues read_unit(const Thread& t, const StagedRows& from, u32 in, u32 rows, u32 first,
                                     u32 unit, u32 units) {
  u32 segment = unit;
  u32 column = 0;
  if (rows > 1) {
    segment = unit / rows;
    column = unit - segment * rows;
  }
  const u32 i = (first + segment) * kSegment + unit_place(t);
  const bool inside = unit < units && i < in;  // whole blocks of 64
  const u32 row = inside ? from.row(column) : 0;
  const Global<const f32> x = from.x + (static_cast<i64>(row) * in + (inside ? i : 0));
  UnitValues values;
  UNROLL for (u32 k = 0; k < 4; ++k) {
    u32x2 v{0, 0};
    if (inside) v = load2(x, 4 * k);
    values.v[2 * k] = f32_of_bits(v.x);
    values.v[2 * k + 1] = f32_of_bits(v.y);
  }
  return values;
}
/// Rounds segments first .. first + segments - 1 of `rows` columns: `simds` SIMD groups, a unit each. `ahead`
/// is what read_unit gives of a SIMD group's first unit; that of the next is read before one is rounded.
DEVICE_FUNCTION void stage_rows(const Thread& t, u32 simds, const StagedRows& from, u32 in, u32 rows,
                                u32 first, u32 segments, UnitValues ahead, f32 scaled, Shared<f32> words,
                                Shared<f32> sides) {
  const u32 units = segments * rows;
  NO_UNROLL for (u32 unit = t.simd; unit < units; unit += simds) {
    const UnitValues values = ahead;
    if (unit + simds < units) ahead = read_unit(t, from, in, rows, first, unit + simds, units);
    stage_unit(t, values, scaled, words, sides, unit);
  }
}

/// Rows that are rounded once, in device memory, for all groups that multiply with them: units
/// [segment][row], with sides for each format's unit.
struct RoundArgs {
  Global<const f32> x;  // [rows][in]
  Global<u32> words;    // [units][kUnitWords]
  Global<f32> sides;    // [kSideSets][units][kUnitSides]
  u32 in, rows;
};
DEVICE_FUNCTION u32 units_of(const RoundArgs& args) {
  return (args.in + kSegment - 1) / kSegment * args.rows;
}
/// A SIMD group's unit, if it is there. Before the wait the rows must be there, or it was waited for already.
DEVICE_FUNCTION void round_one(const Thread& t, const RoundArgs& args, u32 unit) {
  const u32 units = units_of(args);
  const StagedRows from{args.x, nullptr, 0};
  const RoundedUnit rounded = round_unit(t, read_unit(t, from, args.in, args.rows, 0, unit, units));
  wait_for_kernel_before();
  if (unit >= units) return;
  store4(args.words, unit * kUnitWords + chunk_place(t), rounded.chunk);
  UNROLL for (u32 set = 0; set < kSideSets; ++set) {
    const u32 at = (set * units + unit) * kUnitSides;
    if (t.lane % 8 == 0) args.sides[at + t.lane / 8] = rounded.sum / unit_of_sides(set);
    if (t.lane < 4) args.sides[at + kSegmentBlocks + t.lane] = rounded.down * unit_of_sides(set);
  }
}
/// Brings segments first .. first + segments - 1 of a group's columns into its memory, [segment][column]; a
/// barrier must follow.
DEVICE_FUNCTION void copy_rounded(const Thread& t, u32 simds, const RoundArgs& args, u32 set,
                                  const StagedRows& from, u32 columns, u32 first, u32 segments,
                                  Shared<f32> words, Shared<f32> sides) {
  const Global<const u32> rounded = args.words;
  const Global<const f32> rounded_sides = args.sides + set * units_of(args) * kUnitSides;
  NO_UNROLL for (u32 unit = t.simd; unit < segments * columns; unit += simds) {
    const u32 segment = unit / columns;
    const u32 source = (first + segment) * args.rows + from.row(unit - segment * columns);
    copy16_async(words, unit * kUnitWords + t.lane * 4, rounded, source * kUnitWords + t.lane * 4);
    if (t.lane < 2) {
      copy16_async(sides, unit * kUnitSides + t.lane * 4, rounded_sides, source * kUnitSides + t.lane * 4);
    }
  }
  async_commit();
  async_wait<0>();
}

/// Staged units as a lane multiplies with them: [segment][row]. The lane's words of its column, the sides of
/// its two results (of some row, where there is none), and how far it is to the next segment's.
template <class Words, class Sides>
struct StagedUnits {
  Words words;
  Sides sides;
  u32 word, word_step, side[2], side_step;
  bool present;  // the lane's column
};
using GroupUnits = StagedUnits<Shared<f32>, Shared<f32>>;
using DeviceUnits = StagedUnits<Global<const u32>, Global<const f32>>;
DEVICE_FUNCTION GroupUnits staged_units(const Thread& t, Shared<f32> words, Shared<f32> sides, u32 rows) {
  const u32 column = t.lane / 4;
  const u32 result = t.lane % 4 * 2;
  return GroupUnits{words,
                    sides,
                    min_of(column, rows - 1) * kUnitWords + t.lane % 4 * 4,
                    rows * kUnitWords,
                    {min_of(result, rows - 1) * kUnitSides, min_of(result + 1, rows - 1) * kUnitSides},
                    rows * kUnitSides,
                    column < rows};
}
/// Rows that were rounded once; column i is row number index[i], or i without an index.
DEVICE_FUNCTION DeviceUnits rounded_units(const Thread& t, const RoundArgs& args, u32 set,
                                          const StagedRows& from, u32 columns) {
  const u32 last = columns - 1;
  const u32 result = t.lane % 4 * 2;
  DeviceUnits units;
  units.words = args.words;
  units.sides = args.sides + set * units_of(args) * kUnitSides;
  units.word = from.row(min_of(t.lane / 4, last)) * kUnitWords + t.lane % 4 * 4;
  units.word_step = args.rows * kUnitWords;
  units.side[0] = from.row(min_of(result, last)) * kUnitSides;
  units.side[1] = from.row(min_of(result + 1, last)) * kUnitSides;
  units.side_step = args.rows * kUnitSides;
  units.present = t.lane / 4 < columns;
  return units;
}

/// A matrix as the tiles of a decode step need it: whole tiles, and below 4 GiB, so that a place in it is a
/// 32-bit number.
struct TileMatrix {
  Global<const u8> data;
  Global<const u16> scales, biases;
  u32 in, row_bytes, groups, per;
};
DEVICE_FUNCTION TileMatrix tile_matrix(Weights w) {
  TileMatrix m;
  m.data = w.data;
  m.scales = w.scales;
  m.biases = w.biases;
  m.in = static_cast<u32>(w.in);
  m.row_bytes = static_cast<u32>(w.row_bytes);
  m.groups = w.groups;
  m.per = w.per;
  return m;
}

/// Number `block` of two words' or four's numbers in bfloat16.
DEVICE_FUNCTION f32 side_of(const u32* words, u32 block) {
  const u32 word = words[block / 2];
  return f32_of_bits(block % 2 == 0 ? word << 16 : word & 0xffff0000U);
}
/// A block of a lane's column. Lanes without one have zeros and read nothing: what reads share the way with
/// is the weights.
template <class Units>
DEVICE_FUNCTION BlockColumns<1> staged_block(const Units& x, u32 at, u32 b) {
  const u32 word = x.word + at * x.word_step;
  BlockColumns<1> columns;
  UNROLL for (u32 h = 0; h < 2; ++h) {
    u32x4 chunk{0, 0, 0, 0};
    if (x.present) chunk = load4(x.words, word + b * 32 + h * 16);
    columns.pair[0][2 * h] = chunk.x;
    columns.pair[0][4 + 2 * h] = chunk.y;
    columns.pair[0][2 * h + 1] = chunk.z;
    columns.pair[0][5 + 2 * h] = chunk.w;
  }
  return columns;
}
DEVICE_FUNCTION MmaC scaled_down(const f32* v, f32 down0, f32 down1) {
  MmaC out;
  out.r[0] = v[0] * down0;
  out.r[1] = v[1] * down1;
  out.r[2] = v[2] * down0;
  out.r[3] = v[3] * down1;
  return out;
}

/// What a lane needs of one segment of one tile, as it lies in memory: loaded well before it is multiplied,
/// and without a branch, since what meets at the end of one is waited for. kSides: how many blocks' scales of
/// a row can be read at once, every row having a multiple of it (per is 0), or 1 for any. Blocks that the
/// input has not are read from its last one: they meet columns of zeros.
template <class Codes, u32 kSides>
struct TileSegment {
  Codes first[kSegmentBlocks], second[kSegmentBlocks];
  u32 sides[2][4];  // of each row: two words of scales, two of biases

  /// `from`: of the lane's row of the tile and the segment's first block.
  static DEVICE_FUNCTION void load_sides(Global<const u16> from, u32 per, u32 block, u32 last, u32* to) {
    if (kSides == 4) {
      const u32x2 words = load2(from, 0);
      to[0] = words.x;
      to[1] = words.y;
    } else if (kSides == 2) {
      to[0] = load1(from, 0);
      to[1] = load1(from, min_of(2U, last - 1 - block));
    } else {
      u32 each[kSegmentBlocks];
      UNROLL for (u32 b = 0; b < kSegmentBlocks; ++b) {
        each[b] = from[(min_of(block + b, last) >> per) - (block >> per)];
      }
      to[0] = each[0] | each[1] << 16;
      to[1] = each[2] | each[3] << 16;
    }
  }
  DEVICE_FUNCTION void load(const Thread& t, const TileMatrix& w, u32 tile, u32 segment) {
    const u32 block = segment * kSegmentBlocks;
    const u32 last = w.in / kBlock - 1;
    // What is the same for all lanes, then what is the same for all tiles.
    const Global<const u8> codes =
        w.data + (tile * (kTileRows * w.row_bytes) + block * static_cast<u32>(Codes::kBlockBytes));
    const Global<const u8> a = codes + t.lane / 4 * w.row_bytes;
    const Global<const u8> b = codes + (t.lane / 4 + 8) * w.row_bytes;
    u32 at[kSegmentBlocks];
    UNROLL for (u32 k = 0; k < kSegmentBlocks; ++k) at[k] = kSides == 4 ? k : min_of(k, last - block);
    load_blocks(t, a, at, first);
    load_blocks(t, b, at, second);
    const u32 begin = tile * (kTileRows * w.groups) + (block >> w.per);
    const Global<const u16> scales = w.scales + begin;
    const Global<const u16> biases = w.biases + begin;
    load_sides(scales + t.lane / 4 * w.groups, w.per, block, last, sides[0]);
    load_sides(biases + t.lane / 4 * w.groups, w.per, block, last, sides[0] + 2);
    load_sides(scales + (t.lane / 4 + 8) * w.groups, w.per, block, last, sides[1]);
    load_sides(biases + (t.lane / 4 + 8) * w.groups, w.per, block, last, sides[1] + 2);
  }
  /// With segment number `at` of those staged.
  template <class Units>
  DEVICE_FUNCTION MmaC multiply(const Thread& t, const Units& x, u32 at) {
    settle_blocks(t, first);
    settle_blocks(t, second);
    const f32x4 sums0 = load4f(x.sides, x.side[0] + at * x.side_step);
    const f32x4 sums1 = load4f(x.sides, x.side[1] + at * x.side_step);
    const f32 sum0[kSegmentBlocks] = {sums0.x, sums0.y, sums0.z, sums0.w};
    const f32 sum1[kSegmentBlocks] = {sums1.x, sums1.y, sums1.z, sums1.w};
    const f32 down0 = x.sides[x.side[0] + at * x.side_step + kSegmentBlocks];
    const f32 down1 = x.sides[x.side[1] + at * x.side_step + kSegmentBlocks];
    f32 v[4] = {0, 0, 0, 0};
    UNROLL for (u32 b = 0; b < kSegmentBlocks; ++b) {
      loads_stay();
      const MmaC c = block_product<1>(t, first[b], second[b], staged_block(x, at, b));
      const f32 s0 = side_of(sides[0], b);
      const f32 s1 = side_of(sides[1], b);
      add_block(v, c, s0, Codes::bias(s0, side_of(sides[0] + 2, b)), s1,
                Codes::bias(s1, side_of(sides[1] + 2, b)), sum0[b], sum1[b]);
    }
    return scaled_down(v, down0, down1);
  }
};

/// The same with scales and biases in the group's memory, from which they are read as they are needed: what
/// is on its way takes fewer registers, and the load path fewer requests.
template <class Codes, bool kWhole>
struct TileCodes {
  Codes first[kSegmentBlocks], second[kSegmentBlocks];

  /// `from`: the lane's first row; its second lies `step` bytes further on. kWhole: there are no blocks less
  /// than a segment has.
  DEVICE_FUNCTION void load(const Thread& t, Global<const u8> from, u32 step, u32 segment, u32 last) {
    const u32 block = segment * kSegmentBlocks;
    const u32 code = block * static_cast<u32>(Codes::kBlockBytes);
    u32 at[kSegmentBlocks];
    UNROLL for (u32 k = 0; k < kSegmentBlocks; ++k) at[k] = kWhole ? k : min_of(k, last - block);
    load_blocks(t, from + code, at, first);
    load_blocks(t, from + (code + step), at, second);
  }
  /// `scales`: of the lane's first row in this segment; its second row's lie `step` further on, biases
  /// `biases` further on. `blocks`: so many of the segment's are there, an even number.
  template <class Units>
  DEVICE_FUNCTION MmaC multiply(const Thread& t, const Units& x, u32 at, Shared<u16> scales, u32 step,
                                u32 biases, u32 blocks) {
    settle_blocks(t, first);
    settle_blocks(t, second);
    const u32 side0 = x.side[0] + at * x.side_step;
    const u32 side1 = x.side[1] + at * x.side_step;
    f32 v[4] = {0, 0, 0, 0};
    UNROLL for (u32 pair = 0; pair < kSegmentBlocks; pair += 2) {
      if (!kWhole && pair >= blocks) break;
      loads_stay();
      const u32 scale[2] = {load1(scales, pair), load1(scales, step + pair)};
      const u32 bias[2] = {load1(scales, biases + pair), load1(scales, biases + step + pair)};
      UNROLL for (u32 b = pair; b < pair + 2; ++b) {
        if (b > pair) loads_stay();
        const MmaC c = block_product<1>(t, first[b], second[b], staged_block(x, at, b));
        const f32 s0 = side_of(scale, b % 2);
        const f32 s1 = side_of(scale + 1, b % 2);
        add_block(v, c, s0, Codes::bias(s0, side_of(bias, b % 2)), s1,
                  Codes::bias(s1, side_of(bias + 1, b % 2)), x.sides[side0 + b], x.sides[side1 + b]);
      }
    }
    return scaled_down(v, x.sides[side0 + kSegmentBlocks], x.sides[side1 + kSegmentBlocks]);
  }
};

/// Puts a lane's results where the group adds them up: [row of x][row of the tile].
DEVICE_FUNCTION void put_rows(const Thread& t, Shared<f32> to, u32 rows, const MmaC& c) {
  const u32 at = t.lane % 4 * 2 * kTileRows + t.lane / 4;
  if (t.lane % 4 * 2 < rows) {
    to[at] = c.r[0];
    to[at + 8] = c.r[2];
  }
  if (t.lane % 4 * 2 + 1 < rows) {
    to[at + kTileRows] = c.r[1];
    to[at + kTileRows + 8] = c.r[3];
  }
}

/// Adds partial sums of segments first .. first + count - 1, `stride` apart, to an element's total.
DEVICE_FUNCTION void add_partials(Shared<f32> partial, u32 stride, u32 element, u32 first, u32 count,
                                  SpanSum& total) {
  constexpr u32 kAhead = 5;  // read before any is added
  static_assert(kSpanSegments % kAhead == 0, "a span ends with what is read at once");
  u32 place = first % kSpanSegments;
  u32 s = 0;
  NO_UNROLL while (s < count) {
    if (place == 0) {
      total.total += total.span;
      total.span = 0;
    }
    const u32 now = min_of(min_of(kAhead, kSpanSegments - place), count - s);
    f32 part[kAhead];
    UNROLL for (u32 i = 0; i < kAhead; ++i) part[i] = i < now ? partial[(s + i) * stride + element] : 0.0F;
    UNROLL for (u32 i = 0; i < kAhead; ++i) {
      if (i < now) total.span += part[i];
    }
    s += now;
    place = place + now == kSpanSegments ? 0 : place + now;
  }
}

/// Asks for the codes and scales of some neighbouring tiles: thread `which` of `count` that do it together.
DEVICE_FUNCTION void fetch_tiles(const TileMatrix& w, u32 tile, u32 tiles, u32 which, u32 count) {
  const u32 row = tile * kTileRows;
  const u32 bytes = tiles * kTileRows * w.row_bytes;
  const u32 side_bytes = tiles * kTileRows * w.groups * 2;
  const Global<const u8> data = w.data + row * w.row_bytes;
  const Global<const u8> scales = retype<const u8>(w.scales + row * w.groups);
  const Global<const u8> biases = retype<const u8>(w.biases + row * w.groups);
  NO_UNROLL for (u32 i = which * kLine; i < bytes; i += count * kLine) fetch_line(data + i);
  NO_UNROLL for (u32 i = which * kLine; i < side_bytes; i += count * kLine) {
    fetch_line(scales + i);
    fetch_line(biases + i);
  }
}

}  // namespace sluice::kernels
