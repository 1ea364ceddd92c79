#include <algorithm>
#include <numeric>

#include "backend/golden/operations.h"
#include "quant/codes.h"

namespace sluice::backend::golden {

void router(GoldenCase& c) {
  const std::int64_t n = c.size("n");
  const std::int64_t k = c.size("k");
  const std::int64_t nb = c.size("nb");
  const bool renormalise = c.whole("renorm") != 0;
  c.require(k <= n, "k is larger than n");
  const auto logits = c.input<float>("in_logits", {nb, n});
  const auto index = c.output<std::uint32_t>("out_idx", {nb, k});
  const auto weight = c.output<float>("out_weights", {nb, k});
  if (!c.ok()) return;
  c.backend().router_topk(logits, nb, n, k, renormalise, index, weight);
  c.expect_equal("router_topk", "out_idx", index);
  c.expect_close("router_topk", "out_weights", weight, 1e-6);
}

namespace {

Format low_bit_format(GoldenCase& c, std::string_view key) {
  const std::int64_t bits = c.size(key);
  c.require(!c.ok() || bits == 2 || bits == 3, "low-bit codes have 2 or 3 bits");
  return bits == 2 ? Format::kQ2 : Format::kQ3;
}

}  // namespace

void low_bit_matmul(GoldenCase& c) {
  const Format format = low_bit_format(c, "bits");
  const std::int64_t out = c.size("out_dim");
  const std::int64_t in = c.size("in_dim");
  const std::int64_t nb = c.size("tokens");
  const int group = c.group_of(in);
  Matrix w{format, out, in, group, {}, {}, {}};
  const auto low = c.host<std::byte>("in_low", {out, w.row_bytes()});
  w.data = c.upload(low);
  w.scales = c.input<std::uint16_t>("in_scales", {out, in / group});
  w.biases = c.input<std::uint16_t>("in_biases", {out, in / group});
  const auto q4 = c.host<std::byte>("in_codes_q4", {out, in / 8});
  const auto x = c.input<float>("in_x", {nb, in});
  const auto y = c.output<float>("out_y", {nb, out});
  if (!c.ok()) return;
  c.backend().linear(w, x, nb, y);
  c.expect_close("linear", "out_y", y, 1e-3);

  // Dropping bits of the 4-bit codes gives the same record.
  std::vector<std::byte> packed(low.size());
  quant::truncate_codes(format, q4, packed);
  std::int64_t different = 0;
  for (std::size_t i = 0; i < low.size(); ++i) different += packed[i] != low[i] ? 1 : 0;
  c.add_exact("linear", "in_low", different);
}

namespace {

/// Everything of a moe_* file on the device. Slot u of a row is entry u of the union.
struct MoeFile {
  ExpertBatch batch;
  std::int64_t entries = 0;
  std::int64_t resident = 0;
  std::vector<std::uint32_t> begin;  // as on the device
};

void add_pairs(GoldenCase& c, const std::vector<float>& weights, MoeFile& moe) {
  std::vector<std::uint32_t> rows;
  std::vector<std::uint32_t> slots;
  moe.begin = {0};
  for (std::int64_t u = 0; u < moe.entries; ++u) {
    for (std::int64_t r = 0; r < moe.batch.rows; ++r) {
      if (weights[static_cast<std::size_t>(r * moe.entries + u)] == 0) continue;
      rows.push_back(static_cast<std::uint32_t>(r));
      slots.push_back(static_cast<std::uint32_t>(u));
    }
    moe.begin.push_back(static_cast<std::uint32_t>(rows.size()));
  }
  moe.batch.begin = c.upload(moe.begin);
  moe.batch.pair_row = c.upload(rows);
  moe.batch.pair_slot = c.upload(slots);
}

// in_kinds: 0 for 4 bits, 1 for 3, 2 for 2. Low-bit records lie in the order of the entries that use them.
void add_entries(GoldenCase& c, Format low_format, MoeFile& moe) {
  const auto kinds = c.host<std::uint32_t>("in_kinds", {moe.entries});
  const std::uint32_t low_kind = low_format == Format::kQ3 ? 1 : 2;
  const auto low_count = std::count(kinds.begin(), kinds.end(), low_kind);
  const RecordLayout full{moe.batch.geometry, Format::kQ4};
  const RecordLayout low{moe.batch.geometry, low_format};
  const Dev<const std::byte> full_records = c.input<std::byte>("in_records_q4", {moe.entries, full.bytes()});
  Dev<const std::byte> low_records;
  if (low_count > 0) low_records = c.input<std::byte>("in_records_low", {low_count, low.bytes()});
  std::vector<ExpertEntry> entries;
  std::int64_t low_seen = 0;
  for (std::int64_t u = 0; c.ok() && u < moe.entries; ++u) {
    const std::uint32_t kind = kinds[static_cast<std::size_t>(u)];
    if (kind == low_kind) {
      entries.push_back(ExpertEntry::make((low_records + low_seen++ * low.bytes()).address(), low_format));
    } else {
      c.require(kind == 0, "in_kinds holds an unknown precision");
      entries.push_back(ExpertEntry::make((full_records + u * full.bytes()).address(), Format::kQ4));
    }
  }
  moe.batch.entries = c.upload(entries);
}

/// The shared expert as a batch of one entry that every row chose.
ExpertBatch shared_batch(GoldenCase& c, const MoeFile& moe, Dev<const std::byte> record) {
  ExpertBatch batch = moe.batch;
  batch.slots = 1;
  std::vector<std::uint32_t> rows(static_cast<std::size_t>(batch.rows));
  std::iota(rows.begin(), rows.end(), 0U);
  const std::vector<ExpertEntry> entry{ExpertEntry::make(record.address(), Format::kQ4)};
  const std::vector<std::uint32_t> begin{0, static_cast<std::uint32_t>(batch.rows)};
  batch.entries = c.upload(entry);
  batch.begin = c.upload(begin);
  batch.pair_row = c.upload(rows);
  batch.pair_slot = c.memory<std::uint32_t>(batch.rows);
  return batch;
}

}  // namespace

void experts(GoldenCase& c) {
  MoeFile moe;
  moe.batch.geometry = {c.size("hidden"), c.size("inter"), 64};
  moe.batch.rows = c.size("nb");
  moe.entries = c.size("union");
  moe.resident = c.whole("resident");
  moe.batch.slots = moe.entries;
  const Format low_format = low_bit_format(c, "low_bits");
  const std::int64_t hidden = moe.batch.geometry.hidden;
  const std::int64_t nb = moe.batch.rows;
  c.require(hidden % 64 == 0 && moe.batch.geometry.inter % 64 == 0, "a dimension is not a multiple of 64");
  c.require(moe.resident <= moe.entries, "more entries resident than there are");
  if (!c.ok()) return;

  const auto weights = c.host<float>("in_weights", {nb, moe.entries});
  const auto x = c.input<float>("in_x", {nb, hidden});
  // The shared expert: a 4-bit record, then its gate as bf16 [hidden].
  const std::int64_t shared_bytes = RecordLayout{moe.batch.geometry, Format::kQ4}.bytes();
  const auto dense = c.host<std::byte>("in_dense_shared", {shared_bytes + 2 * hidden});
  const auto out = c.output<float>("out_resident", {nb, hidden});
  const auto all = c.host<float>("out_all", {nb, hidden});
  if (!c.ok()) return;
  add_entries(c, low_format, moe);
  add_pairs(c, weights, moe);
  const auto shared_record = c.upload(std::span(dense).first(static_cast<std::size_t>(shared_bytes)));
  const auto gate_bytes = c.upload(std::span(dense).last(static_cast<std::size_t>(2 * hidden)));
  const Dev<const std::uint16_t> shared_gate(reinterpret_cast<const std::uint16_t*>(gate_bytes.address()));
  auto resident_weights = weights;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (static_cast<std::int64_t>(i) % moe.entries >= moe.resident) resident_weights[i] = 0;
  }
  const auto device_weights = c.upload(weights);
  const auto device_resident = c.upload(resident_weights);
  const auto y = c.memory<float>(nb * moe.entries * hidden);
  const auto shared = shared_batch(c, moe, shared_record);
  const auto shared_y = c.memory<float>(nb * hidden);
  if (!c.ok()) return;

  const std::int64_t resident_pairs = moe.begin[static_cast<std::size_t>(moe.resident)];
  // Both sums contain the shared expert; the first leaves out the late arrivals.
  const auto combine = [&](Dev<const float> row_weights, std::string_view name) {
    c.backend().combine_experts(y, row_weights, nb, moe.entries, hidden, out);
    c.backend().shared_add_rows(x, shared_y, shared_gate, nb, hidden, out);
    c.expect_close("experts", name, out, 3e-3);
  };
  c.backend().experts(shared, 0, 1, nb, x, shared_y);
  c.backend().experts(moe.batch, 0, moe.resident, resident_pairs, x, y);
  combine(device_resident, "out_resident");
  c.backend().experts(moe.batch, moe.resident, moe.entries, moe.begin.back() - resident_pairs, x, y);
  combine(device_weights, "out_all");
}

}  // namespace sluice::backend::golden
