// Rows of a table, dequantised.
#pragma once

#include "codes.h"

#define SLUICE_EMBED_KERNELS(X) X(embed_rows)

namespace sluice::kernels {

struct EmbedRowsArgs {
  Weights table;
  Global<const i32> ids;  // [rows]
  Global<f32> out;        // [rows][table.in]
};
constexpr u32 kEmbedThreads = 256;
/// Groups (parts of a row, rows).
KERNEL(embed_rows, EmbedRowsArgs, kEmbedThreads) {
  KERNEL_THREAD(t);
  const Weights table = args.table;
  const i64 row = t.group_y;
  const i64 i = static_cast<i64>(t.group_x) * kEmbedThreads + t.index;
  if (i < table.in) args.out[row * table.in + i] = weight_at(table, args.ids[row], i);
}

}  // namespace sluice::kernels
