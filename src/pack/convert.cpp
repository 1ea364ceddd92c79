#include "pack/convert.h"

#include <cstring>

#include "quant/matrix.h"
#include "quant/record.h"

namespace sluice::pack {
namespace {

using spec::Format;

/// The parts of a tensor as a source gives it.
quant::MatrixParts parts_of(const store::DenseTensor& tensor, const quant::MatrixShape& shape) {
  const auto bytes = tensor.buffer.bytes();
  quant::MatrixParts parts{bytes.first(static_cast<std::size_t>(shape.data_bytes())), {}, {}};
  const auto side = static_cast<std::size_t>(shape.scale_bytes());
  if (side > 0) {
    parts.scales = bytes.subspan(tensor.scales_offset, side);
    parts.biases = bytes.subspan(tensor.biases_offset, side);
  }
  return parts;
}

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::optional<std::size_t> kept_tier(const store::SourceForm& source, Format format) {
  const auto& layouts = source.record_layouts();
  for (std::size_t t = 0; t < layouts.size(); ++t) {
    if (layouts[t].format == format) return t;
  }
  return std::nullopt;
}

Result<Rows> convert_rows(const store::WeightSource& source, const store::StoredDense& wanted,
                          std::int64_t first, std::int64_t rows) {
  SLUICE_ASSIGN(const store::DenseTensor tensor, source.read_dense_rows(wanted.name, first, rows));
  const std::int64_t in = wanted.shape[1];
  const quant::MatrixShape from{tensor.format, rows, in, tensor.group};
  const quant::MatrixShape to{wanted.format, rows, in, wanted.group};
  const quant::MatrixParts parts = parts_of(tensor, from);
  Rows out;
  if (from.format == to.format && (from.group == to.group || !spec::is_quantised(to.format))) {
    out.parts.push_back(copy_of(parts.data));
    if (spec::is_quantised(to.format)) {
      out.parts.push_back(copy_of(parts.scales));
      out.parts.push_back(copy_of(parts.biases));
    }
    return out;
  }
  std::vector<float> values(static_cast<std::size_t>(rows * in));
  SLUICE_TRY(quant::dequantise_rows(from, parts, 0, values));
  out.parts.emplace_back(static_cast<std::size_t>(to.data_bytes()));
  quant::MutableMatrixParts target{out.parts[0], {}, {}};
  if (spec::is_quantised(to.format)) {
    out.parts.resize(3, std::vector<std::byte>(static_cast<std::size_t>(to.scale_bytes())));
    target = {out.parts[0], out.parts[1], out.parts[2]};
  }
  if (auto made = quant::quantise_matrix(to, values, {}, target); !made.ok()) {
    return make_error(made.error().code, "{}: tensor {} (rows from {}): {}", source.folder().string(),
                      wanted.name, first, made.error().message);
  }
  return out;
}

RecordConverter::RecordConverter(const store::WeightSource& source,
                                 const std::vector<store::StoredTier>& tiers, const Importance* importance)
    : source_(source), tiers_(tiers), importance_(importance), q4_layout_(source.record_layout()) {
  for (const store::StoredTier& tier : tiers_) {
    slots_.emplace_back(static_cast<std::size_t>(store::slot_bytes(tier.layout)));
    // Truncated tiers have the 4-bit tier's scales, whether that is stored or not.
    q4_layout_.geometry.group = tier.layout.geometry.group;
  }
  q4_layout_.format = Format::kQ4;
}

Result<void> RecordConverter::convert(std::int64_t layer, std::int64_t expert) {
  layer_ = layer;
  expert_ = expert;
  have_values_ = have_q4_ = false;
  have_source_ = false;
  for (std::size_t t = 0; t < tiers_.size(); ++t) {
    const store::StoredTier& tier = tiers_[t];
    // What lies behind the record in its slot stays zero.
    const auto record = std::span(slots_[t]).first(static_cast<std::size_t>(tier.layout.bytes()));
    if (const auto kept = kept_tier(source_, tier.layout.format)) {
      SLUICE_TRY(source_.read_record(*kept, layer, expert, record));
    } else if (tier.method == "truncate") {
      SLUICE_TRY(need_q4());
      SLUICE_TRY(quant::truncate_record(q4_layout_, q4_record_, tier.layout, record));
    } else {
      SLUICE_TRY(need_values());
      SLUICE_TRY(quantise(tier.layout, record));
    }
  }
  return {};
}

Result<void> RecordConverter::quantise(const spec::RecordLayout& layout, std::span<std::byte> record) {
  quant::RecordImportance weights;
  quant::InputFactor inter_factor;
  if (importance_ != nullptr) {
    weights = {importance_->hidden(layer_, expert_), importance_->inter(layer_, expert_),
               importance_->hidden_factor(layer_), nullptr};
    const auto means = importance_->inter_mean(layer_, expert_);
    if (!means.empty()) {
      inter_factor = quant::InputFactor::of_means(weights.inter, means);
      weights.inter_factor = &inter_factor;
    }
  }
  weights.by_size = spec::bits_of(layout.format) < 4 && weights.hidden_factor == nullptr;
  const auto made = quant::quantise_record(layout, values_, weights, record);
  if (made.ok()) return {};
  return make_error(made.error().code, "{}: expert {} of layer {}: {}", source_.folder().string(), expert_,
                    layer_, made.error().message);
}

Result<void> RecordConverter::need_source() {
  if (have_source_) return {};
  have_source_ = true;
  source_record_.resize(static_cast<std::size_t>(source_.record_layout().bytes()));
  return source_.read_record(0, layer_, expert_, source_record_);
}

Result<void> RecordConverter::need_values() {
  if (have_values_) return {};
  SLUICE_TRY(need_source());
  values_.resize(static_cast<std::size_t>(quant::record_weights(source_.record_layout())));
  have_values_ = true;
  return quant::record_values(source_.record_layout(), source_record_, values_);
}

Result<void> RecordConverter::need_q4() {
  if (have_q4_) return {};
  have_q4_ = true;
  q4_record_.resize(static_cast<std::size_t>(q4_layout_.bytes()));
  if (source_.record_layout().format == Format::kQ4) {
    SLUICE_TRY(need_source());
    q4_record_ = source_record_;
    return {};
  }
  SLUICE_TRY(need_values());
  return quantise(q4_layout_, q4_record_);
}

Result<void> convert_ngram(const store::WeightSource& source, const store::StoredTable& wanted,
                           std::int64_t first, std::span<std::byte> out) {
  SLUICE_ASSIGN(const spec::NgramLayout from, source.ngram_layout(wanted.layer));
  const spec::NgramLayout& to = wanted.layout;
  if (from.format == to.format) return source.read_ngram_range(wanted.layer, first, out);
  const std::int64_t rows = static_cast<std::int64_t>(out.size()) / to.row_bytes();
  std::vector<std::byte> stored(static_cast<std::size_t>(rows * from.row_bytes()));
  SLUICE_TRY(source.read_ngram_range(wanted.layer, first, stored));
  std::vector<float> values(static_cast<std::size_t>(rows * from.columns));
  SLUICE_TRY(
      quant::dequantise_rows({from.format, rows, from.columns, from.group}, {stored, {}, {}}, 0, values));
  const quant::MatrixShape shape{to.format, rows, to.columns, to.group};
  std::vector<std::byte> codes(static_cast<std::size_t>(shape.data_bytes()));
  std::vector<std::byte> scales(static_cast<std::size_t>(shape.scale_bytes()));
  std::vector<std::byte> biases(scales.size());
  if (auto made = quant::quantise_matrix(shape, values, {}, {codes, scales, biases}); !made.ok()) {
    return make_error(made.error().code, "{}: n-gram table of layer {} (rows from {}): {}",
                      source.folder().string(), wanted.layer, first, made.error().message);
  }
  const auto code_bytes = static_cast<std::size_t>(to.code_bytes());
  const auto side = static_cast<std::size_t>(to.scale_bytes());
  std::byte* at = out.data();
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    std::memcpy(at, codes.data() + row * code_bytes, code_bytes);
    std::memcpy(at + code_bytes, scales.data() + row * side, side);
    std::memcpy(at + code_bytes + side, biases.data() + row * side, side);
    at += code_bytes + 2 * side;
  }
  return {};
}

}  // namespace sluice::pack
