#include <algorithm>

#include "backend/golden/operations.h"

namespace sluice::backend::golden {

void bf16_matvec(GoldenCase& c) {
  const std::int64_t out = c.size("rows");
  const std::int64_t in = c.size("cols");
  const std::int64_t nb = c.size("nb");
  Matrix w{Format::kBf16, out, in, 64, {}, {}, {}};
  const auto bits = c.host<std::uint16_t>("in_w", {out, in});
  const auto bytes = std::as_bytes(std::span(bits));
  w.data = c.upload(bytes);
  const auto x = c.input<float>("in_x", {nb, in});
  const auto y = c.output<float>("out_y", {nb, out});
  if (!c.ok()) return;
  c.backend().linear(w, x, nb, y);
  c.expect_close("linear", "out_y", y, 1e-6);
}

void qmv_small(GoldenCase& c) {
  const std::int64_t out = c.size("out_dim");
  const std::int64_t in = c.size("in_dim");
  const std::int64_t nb = c.size("nb");
  const Matrix w = c.q4_matrix("in_w", out, in);
  const auto x = c.input<float>("in_x", {nb, in});
  const auto y = c.output<float>("out_y", {nb, out});
  if (!c.ok()) return;
  c.backend().linear(w, x, nb, y);
  c.expect_close("linear", "out_y", y, c.backend().rounds_inputs() ? 5e-5 : 1e-5);
}

void qmv_silu(GoldenCase& c) {
  const std::int64_t out = c.size("out_dim");
  const std::int64_t in = c.size("in_dim");
  const std::int64_t nb = c.size("nb");
  const float div = c.number("div");
  const Matrix w = c.q4_matrix("in_w", out, in);
  const auto x = c.input<float>("in_x", {nb, in});
  const auto y = c.output<float>("out_y", {nb, out});
  if (!c.ok()) return;
  c.backend().linear_silu(w, x, nb, div, y);
  c.expect_close("linear_silu", "out_y", y, 2e-3);
}

void silu_rows(GoldenCase& c) {
  const float div = c.number("div");
  const std::int64_t count = c.extent("in_x", 0);
  const auto x = c.input<float>("in_x", {count});
  if (!c.ok()) return;
  c.backend().silu_rows(x, count, div);
  c.expect_close("silu_rows", "out_x", x, 1e-6);
}

namespace {

/// Row numbers below `bound`.
Dev<std::uint32_t> row_index(GoldenCase& c, std::int64_t rows, std::int64_t bound) {
  const auto index = c.host<std::uint32_t>("in_idx", {rows});
  c.require(std::all_of(index.begin(), index.end(), [bound](std::uint32_t i) { return i < bound; }),
            "in_idx names a row that in_x or in_out does not have");
  return c.upload(index);
}

}  // namespace

void gather_rows(GoldenCase& c) {
  const std::int64_t all = c.extent("in_x", 0);
  const std::int64_t width = c.extent("in_x", 1);
  const std::int64_t rows = c.extent("in_idx", 0);
  const auto x = c.input<float>("in_x", {all, width});
  const auto index = row_index(c, rows, all);
  const auto out = c.output<float>("out", {rows, width});
  if (!c.ok()) return;
  c.backend().gather_rows(x, index, rows, width, out);
  c.expect_equal("gather_rows", "out", out);
}

void scatter_add_rows(GoldenCase& c) {
  const std::int64_t all = c.extent("in_out", 0);
  const std::int64_t width = c.extent("in_out", 1);
  const std::int64_t rows = c.extent("in_idx", 0);
  const auto y = c.input<float>("in_y", {rows, width});
  const auto index = row_index(c, rows, all);
  const auto weight = c.input<float>("in_w", {rows});
  const auto out = c.input<float>("in_out", {all, width});
  if (!c.ok()) return;
  c.backend().scatter_add_rows(y, index, weight, rows, width, out);
  c.expect_close("scatter_add_rows", "out", out, 1e-6);
}

void shared_add_rows(GoldenCase& c) {
  const std::int64_t rows = c.extent("in_x", 0);
  const std::int64_t width = c.extent("in_x", 1);
  const auto x = c.input<float>("in_x", {rows, width});
  const auto y = c.input<float>("in_y", {rows, width});
  const auto gate = c.input<std::uint16_t>("in_gate", {width});
  const auto out = c.input<float>("in_out", {rows, width});
  if (!c.ok()) return;
  c.backend().shared_add_rows(x, y, gate, rows, width, out);
  c.expect_close("shared_add_rows", "out", out, 1e-6);
}

}  // namespace sluice::backend::golden
