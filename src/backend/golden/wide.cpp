// Operations on the wide residual, the n-gram embedding and the DeltaNet's output.
#include <algorithm>
#include <cstdlib>

#include "backend/golden/operations.h"
#include "base/numbers.h"

namespace sluice::backend::golden {

namespace {

WideShape wide_shape(GoldenCase& c) {
  return {c.size("nb"), c.size("groups"), c.size("n")};
}

Shape wide(const WideShape& s) {
  return {s.rows, s.streams, s.width};
}

}  // namespace

void replicate(GoldenCase& c) {
  const WideShape s = wide_shape(c);
  const auto e = c.input<float>("in_e", {s.rows, s.width});
  const auto out = c.output<float>("out_hyper", wide(s));
  if (!c.ok()) return;
  c.backend().replicate(s, e, out);
  c.expect_equal("replicate", "out_hyper", out);
}

void group_norm(GoldenCase& c) {
  const WideShape s = wide_shape(c);
  const float eps = c.number("eps");
  const float shift = c.number("shift");
  const auto x = c.input<float>("in_x", wide(s));
  const auto w = c.input<float>("in_w", {s.streams, s.width});
  const auto y = c.output<float>("out_y", wide(s));
  if (!c.ok()) return;
  c.backend().group_norm(s, x, w, shift, eps, y);
  c.expect_close("group_norm", "out_y", y, 1e-6);
}

void norm_prep(GoldenCase& c) {
  const WideShape s = wide_shape(c);
  const float eps = c.number("eps");
  const bool injects = c.whole("inject") != 0;
  const std::int64_t row = s.streams * s.width;
  c.require(row % 32 == 0 && s.width % 2 == 0, "groups * n is not a multiple of 32");
  const auto x = c.input<float>("in_x", wide(s));
  const auto w = c.input<float>("in_w", {s.streams, s.width});
  const auto out = c.input<float>("in_out", {s.rows, s.width});
  const auto gate = c.input<float>("in_r", {s.rows, s.streams});
  const auto golden_even = c.host<std::uint16_t>("out_xe", {s.rows, row / 2});
  const auto golden_odd = c.host<std::uint16_t>("out_xo", {s.rows, row / 2});
  const auto y = c.output<float>("out_y", wide(s));
  Backend::HalfStreams halves;
  halves.even = c.output<std::uint16_t>("out_xe", {s.rows, row / 2});
  halves.odd = c.output<std::uint16_t>("out_xo", {s.rows, row / 2});
  halves.sums = c.output<float>("out_xsum", {s.rows, row / 32});
  if (!c.ok()) return;
  c.backend().norm_prepare(s, injects ? out : Dev<float>(), injects ? gate : Dev<float>(), x, w, eps, y,
                           &halves);
  c.expect_close("norm_prepare", "out_x", x, 1e-6);
  c.expect_close("norm_prepare", "out_y", y, 1e-6);
  c.expect_close("norm_prepare", "out_xsum", halves.sums, 1e-6);
  // The halves are the backend's own y, rounded. A y that is right to 1e-6 may round to the neighbour of
  // the golden half, never further.
  const auto values = c.download(y, golden_even.size() * 2);
  const auto compare = [&](std::string_view name, Dev<std::uint16_t> found,
                           const std::vector<std::uint16_t>& golden, std::size_t first) {
    const auto halves_found = c.download(found, golden.size());
    std::int64_t different = 0;
    for (std::size_t i = 0; i < golden.size(); ++i) {
      const bool rounded = halves_found[i] == to_half(values[2 * i + first]).bits;
      if (!rounded || std::abs(int{halves_found[i]} - int{golden[i]}) > 1) ++different;
    }
    c.add_exact("norm_prepare", name, different);
  };
  compare("out_xe", halves.even, golden_even, 0);
  compare("out_xo", halves.odd, golden_odd, 1);
}

void hc_mix(GoldenCase& c) {
  const WideShape s = wide_shape(c);
  const auto u = c.input<float>("in_u", wide(s));
  const auto normed = c.input<float>("in_normed", wide(s));
  const auto mixed = c.output<float>("out_mixed", {s.rows, s.width});
  if (!c.ok()) return;
  c.backend().hc_mix(s, u, normed, mixed);
  c.expect_close("hc_mix", "out_mixed", mixed, 1e-6);
}

void inject(GoldenCase& c) {
  const WideShape s = wide_shape(c);
  const auto hyper = c.input<float>("in_hyper", wide(s));
  const auto out = c.input<float>("in_out", {s.rows, s.width});
  const auto gate = c.input<float>("in_r", {s.rows, s.streams});
  if (!c.ok()) return;
  c.backend().inject(s, out, gate, hyper);
  c.expect_close("inject", "out_hyper", hyper, 1e-6);
}

void mtp_fold(GoldenCase& c) {
  const WideShape s = wide_shape(c);
  const auto fe = c.input<float>("in_fe", {s.rows, s.width});
  const auto fh = c.input<float>("in_fh", wide(s));
  const auto out = c.output<float>("out_hyper", wide(s));
  if (!c.ok()) return;
  c.backend().mtp_fold(s, fe, fh, out);
  c.expect_equal("mtp_fold", "out_hyper", out);
}

void ple_gate(GoldenCase& c) {
  const WideShape s = wide_shape(c);
  const auto key = c.host<float>("in_key", wide(s));
  const auto query = c.input<float>("in_query", wide(s));
  const auto value = c.host<float>("in_value", {s.rows, s.width});
  auto golden = c.host<float>("out_gated", wide(s));
  const auto gated = c.output<float>("out_gated", wide(s));
  const auto device_key = c.upload(key);
  const auto device_value = c.upload(value);
  if (!c.ok()) return;
  c.backend().ple_gate(s, device_key, query, device_value, gated);
  const auto found = c.download(gated, golden.size());
  double error = relative_error(found, golden);
  // The golden file takes sign(0) as +; with sign(0) = 0 the gate of an all-zero key is one half.
  const auto width = static_cast<std::size_t>(s.width);
  for (std::size_t stream = 0; stream * width < key.size(); ++stream) {
    const float* first = key.data() + stream * width;
    if (!std::all_of(first, first + width, [](float k) { return k == 0; })) continue;
    const float* row = value.data() + stream / static_cast<std::size_t>(s.streams) * width;
    for (std::size_t i = 0; i < width; ++i) golden[stream * width + i] = 0.5F * row[i];
  }
  error = std::min(error, relative_error(found, golden));
  c.add_close("ple_gate", "out_gated", error, 1e-3);
}

void ple_conv(GoldenCase& c) {
  const Backend::ConvShape shape{c.size("channels"), c.size("ksize"), c.size("dilation")};
  const std::int64_t span = c.size("span");
  const std::int64_t filled = c.whole("filled");
  const std::int64_t nb = c.size("nb");
  c.require(span >= (shape.kernel - 1) * shape.dilation, "span is smaller than the window");
  const auto gated = c.input<float>("in_gated", {nb, shape.channels});
  const auto in = c.input<float>("in_gvn", {nb, shape.channels});
  const auto w = c.input<float>("in_w", {shape.channels, shape.kernel});
  const Ring ring{c.input<float>("in_hist_ring", {span, shape.channels}), span};
  const auto y = c.output<float>("out_y", {nb, shape.channels});
  if (!c.ok()) return;
  c.backend().causal_conv(shape, in, w, ring, filled, nb, gated, y);
  c.expect_close("causal_conv", "out_y", y, 1e-6);
  c.expect_equal("causal_conv", "out_hist_ring", ring.data);
}

void delta_gate_norm(GoldenCase& c) {
  const std::int64_t heads = c.size("n_v");
  const std::int64_t dim = c.size("d_v");
  const std::int64_t nb = c.size("nb");
  const float eps = c.number("eps");
  const auto y = c.input<float>("in_y", {nb, heads, dim});
  const auto z = c.input<float>("in_z", {nb, heads, dim});
  const auto w = c.input<float>("in_w", {dim});
  const auto out = c.output<float>("out_y", {nb, heads, dim});
  if (!c.ok()) return;
  c.backend().delta_gate_norm(y, z, w, eps, GateKind::kSigmoid, nb, heads, dim, out);
  c.expect_close("delta_gate_norm", "out_y", out, 1e-6);
}

}  // namespace sluice::backend::golden
