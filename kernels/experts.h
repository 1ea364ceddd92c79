// Routed experts of a step with few rows an expert (operations.md, model.md 3.9).
//
// A table entry is the address of a record with its precision in the top four bits. A group works on one
// entry and some tiles of it, for that entry's pairs in eights; a pair is a row that chose the expert. The
// order of summation is that of matvec.h.
#pragma once

#include "matvec.h"

#define SLUICE_EXPERTS_KERNELS(X) \
  X(experts_gate_up_q4)           \
  X(experts_gate_up_q8)           \
  X(experts_gate_up_q3)           \
  X(experts_gate_up_q2)           \
  X(experts_down_q4)              \
  X(experts_down_q8)              \
  X(experts_down_q3)              \
  X(experts_down_q2)              \
  X(experts_gate_up_any)          \
  X(experts_down_any)

namespace sluice::kernels {

struct ExpertsArgs {
  Global<const u64> entries;    // of this launch: entry `first` of the batch is number 0 here
  Global<const u32> begin;      // [entries + 1]: places in pairs
  Global<const u32> pair_row;   // [pairs]
  Global<const u32> pair_slot;  // [pairs]
  Global<const f32> x;          // [rows][hidden]
  Global<f32> hidden_out;       // [pairs][inter]: silu(gate) * up; pair number p - begin[0]
  Global<f32> y;                // [rows][slots][hidden]
  i64 hidden, inter, slots;
  i32 group;
  u32 hidden_groups, inter_groups, per;  // as in Weights
  i32 tiles;                             // of a group
  i32 only_any;                          // every format goes the float32 way
};

DEVICE_FUNCTION i32 bits_of_format(i32 format) {
  if (format == kFormatF32) return 32;
  if (format == kFormatBf16) return 16;
  if (format == kFormatQ8) return 8;
  if (format == kFormatQ4) return 4;
  return format == kFormatQ3 ? 3 : 2;
}

/// Matrix 0 is gate, 1 up, 2 down (spec/formats.h: RecordLayout).
DEVICE_FUNCTION Weights expert_matrix(u64 entry, i32 which, const ExpertsArgs& args) {
  Weights m;
  m.format = static_cast<i32>(entry >> 60);
  m.group = args.group;
  m.out = which == 2 ? args.hidden : args.inter;
  m.in = which == 2 ? args.inter : args.hidden;
  m.groups = which == 2 ? args.inter_groups : args.hidden_groups;
  m.per = args.per;
  m.row_bytes = m.in * bits_of_format(m.format) / 8;
  const u64 address = entry & ((static_cast<u64>(1) << 60) - 1);
  const i64 bytes = args.hidden * args.inter * bits_of_format(m.format) / 8;
  const i64 scale_bytes = args.hidden * args.inter_groups * 2;
  const Global<const u8> record = global_of_bits<const u8>(address);
  m.data = record + which * bytes;
  m.scales = retype<const u16>(record + (3 * bytes + 2 * which * scale_bytes));
  m.biases = retype<const u16>(record + (3 * bytes + (2 * which + 1) * scale_bytes));
  return m;
}

DEVICE_FUNCTION i32 format_of(u64 entry) {
  return static_cast<i32>(entry >> 60);
}
/// Whether a record is for the kernels that take any.
DEVICE_FUNCTION bool goes_any_way(const ExpertsArgs& args, u64 entry) {
  return args.only_any != 0 || format_of(entry) < kFormatQ4;
}

/// Tasks of a group over a few tiles of one matrix, or two that share their input: each is one segment of one
/// tile. Results go to `partial`, [segment][tile][kTile].
template <class Codes>
DEVICE_FUNCTION void expert_tasks(const Thread& t, const Weights& a, const Weights& b, u32 matrices,
                                  i64 tile0, u32 tiles, Global<const f32> x, bool present,
                                  Shared<f32> partial) {
  const i64 all_tiles = (a.out + kTileRows - 1) / kTileRows;
  const u32 wide = tiles * matrices;
  const u32 tasks = static_cast<u32>(segments_of(a.in)) * wide;
  const u32 each = (tasks + kMatvecSimds - 1) / kMatvecSimds;
  const u32 end = min_of(tasks, (t.simd + 1) * each);
  SegmentColumns<1> columns;
  i64 loaded = -1;
  for (u32 task = t.simd * each; task < end; ++task) {
    const i64 segment = task / wide;
    const u32 place = task % wide;
    const i64 tile = tile0 + place % tiles;
    if (tile >= all_tiles) continue;
    const u32 blocks = blocks_of(a.in, segment);
    if (segment != loaded) load_columns<1>(t, x + segment * kSegment, present, blocks, columns);
    loaded = segment;
    const Weights& w = place < tiles ? a : b;
    put_partial(t, partial + static_cast<i64>(task) * kTile,
                tile_segment<Codes, 1>(t, w, tile, segment, blocks, columns));
  }
}

/// Adds up the segments of one result.
DEVICE_FUNCTION f32 add_segments(Shared<f32> partial, u32 segments, u32 wide, u32 place, u32 element) {
  SpanSum total;
  total.clear();
  for (u32 s = 0; s < segments; ++s) total.add(s, partial[(s * wide + place) * kTile + element]);
  return total.sum();
}

template <class Codes>
DEVICE_FUNCTION void experts_gate_up(const Thread& t, const ExpertsArgs& args, i32 format,
                                     Shared<f32> partial) {
  const u64 entry = args.entries[t.group_y];
  const u32 begin = args.begin[t.group_y];
  const u32 end = args.begin[t.group_y + 1];
  if (begin == end || format_of(entry) != format) return;  // its record may not have been read
  const Weights gate = expert_matrix(entry, 0, args);
  const Weights up = expert_matrix(entry, 1, args);
  const u32 tiles = static_cast<u32>(args.tiles);
  const i64 tile0 = static_cast<i64>(t.group_x) * tiles;
  const u32 segments = static_cast<u32>(segments_of(args.hidden));
  const u32 base = args.begin[0];
  for (u32 first = begin; first < end; first += kTileColumns) {
    const u32 pair = first + t.lane / 4;
    const bool present = pair < end;
    const Global<const f32> x =
        args.x + static_cast<i64>(args.pair_row[present ? pair : first]) * args.hidden;
    expert_tasks<Codes>(t, gate, up, 2, tile0, tiles, x, present, partial);
    barrier(t);
    for (u32 e = t.index; e < tiles * kTile; e += kMatvecThreads) {
      const i64 output = (tile0 + e / kTile) * kTileRows + e % kTileRows;
      const u32 to = first + e % kTile / kTileRows;
      if (output >= args.inter || to >= end) continue;
      const f32 g = add_segments(partial, segments, 2 * tiles, e / kTile, e % kTile);
      const f32 u = add_segments(partial, segments, 2 * tiles, tiles + e / kTile, e % kTile);
      args.hidden_out[static_cast<i64>(to - base) * args.inter + output] = silu(g) * u;
    }
    barrier(t);
  }
}

template <class Codes>
DEVICE_FUNCTION void experts_down(const Thread& t, const ExpertsArgs& args, i32 format, Shared<f32> partial) {
  const u64 entry = args.entries[t.group_y];
  const u32 begin = args.begin[t.group_y];
  const u32 end = args.begin[t.group_y + 1];
  if (begin == end || format_of(entry) != format) return;
  const Weights down = expert_matrix(entry, 2, args);
  const u32 tiles = static_cast<u32>(args.tiles);
  const i64 tile0 = static_cast<i64>(t.group_x) * tiles;
  const u32 segments = static_cast<u32>(segments_of(args.inter));
  const u32 base = args.begin[0];
  for (u32 first = begin; first < end; first += kTileColumns) {
    const u32 pair = first + t.lane / 4;
    const bool present = pair < end;
    const Global<const f32> x =
        args.hidden_out + static_cast<i64>((present ? pair : first) - base) * args.inter;
    expert_tasks<Codes>(t, down, down, 1, tile0, tiles, x, present, partial);
    barrier(t);
    for (u32 e = t.index; e < tiles * kTile; e += kMatvecThreads) {
      const i64 output = (tile0 + e / kTile) * kTileRows + e % kTileRows;
      const u32 to = first + e % kTile / kTileRows;
      if (output >= args.hidden || to >= end) continue;
      const i64 row = static_cast<i64>(args.pair_row[to]) * args.slots + args.pair_slot[to];
      args.y[row * args.hidden + output] = add_segments(partial, segments, tiles, e / kTile, e % kTile);
    }
    barrier(t);
  }
}

/// Groups (tiles of the output's width, entries); each kernel takes the records of its format.
#define SLUICE_EXPERTS(name, Codes, format)                     \
  KERNEL(experts_gate_up_##name, ExpertsArgs, kMatvecThreads) { \
    KERNEL_THREAD(t);                                           \
    SHARED(f32, partial, kMatvecTasks* kTile);                  \
    experts_gate_up<Codes>(t, args, format, partial);           \
  }                                                             \
  KERNEL(experts_down_##name, ExpertsArgs, kMatvecThreads) {    \
    KERNEL_THREAD(t);                                           \
    SHARED(f32, partial, kMatvecTasks* kTile);                  \
    experts_down<Codes>(t, args, format, partial);              \
  }
SLUICE_EXPERTS(q4, CodesQ4, kFormatQ4)
SLUICE_EXPERTS(q8, CodesQ8, kFormatQ8)
SLUICE_EXPERTS(q3, CodesQ3, kFormatQ3)
SLUICE_EXPERTS(q2, CodesQ2, kFormatQ2)
#undef SLUICE_EXPERTS

/// The sum of a SIMD group over one output's inputs, in float32.
DEVICE_FUNCTION f32 plain_dot(const Thread& t, const Weights& w, i64 output, Global<const f32> x) {
  f32 sum = 0;
  for (i64 i = t.lane; i < w.in; i += 32) sum = fma_f32(weight_at(w, output, i), x[i], sum);
  return simd_sum(t, sum);
}

/// Records of any format and shape: a SIMD group an output. Groups (outputs in eights, entries).
KERNEL(experts_gate_up_any, ExpertsArgs, kMatvecThreads) {
  KERNEL_THREAD(t);
  const u64 entry = args.entries[t.group_y];
  const u32 begin = args.begin[t.group_y];
  const u32 end = args.begin[t.group_y + 1];
  const i64 output = static_cast<i64>(t.group_x) * kMatvecSimds + t.simd;
  if (begin == end || !goes_any_way(args, entry) || output >= args.inter) return;
  const Weights gate = expert_matrix(entry, 0, args);
  const Weights up = expert_matrix(entry, 1, args);
  const u32 base = args.begin[0];
  for (u32 pair = begin; pair < end; ++pair) {
    const Global<const f32> x = args.x + static_cast<i64>(args.pair_row[pair]) * args.hidden;
    const f32 g = plain_dot(t, gate, output, x);
    const f32 u = plain_dot(t, up, output, x);
    if (t.lane == 0) args.hidden_out[static_cast<i64>(pair - base) * args.inter + output] = silu(g) * u;
  }
}

KERNEL(experts_down_any, ExpertsArgs, kMatvecThreads) {
  KERNEL_THREAD(t);
  const u64 entry = args.entries[t.group_y];
  const u32 begin = args.begin[t.group_y];
  const u32 end = args.begin[t.group_y + 1];
  const i64 output = static_cast<i64>(t.group_x) * kMatvecSimds + t.simd;
  if (begin == end || !goes_any_way(args, entry) || output >= args.hidden) return;
  const Weights down = expert_matrix(entry, 2, args);
  const u32 base = args.begin[0];
  for (u32 pair = begin; pair < end; ++pair) {
    const f32 y = plain_dot(t, down, output, args.hidden_out + static_cast<i64>(pair - base) * args.inter);
    const i64 row = static_cast<i64>(args.pair_row[pair]) * args.slots + args.pair_slot[pair];
    if (t.lane == 0) args.y[row * args.hidden + output] = y;
  }
}

}  // namespace sluice::kernels
