#include "pack/layout.h"

#include <algorithm>
#include <array>
#include <system_error>

#include "base/checksum.h"
#include "base/file.h"
#include "pack/convert.h"
#include "store/dense_table.h"
#include "store/matrix.h"

namespace sluice::pack {
namespace {

namespace fs = std::filesystem;
using spec::Format;

constexpr std::uint64_t kAlignment = 64;

/// Files beside the weights that belong to a model.
constexpr std::array<std::string_view, 9> kCopied = {"config.json",
                                                     "tokenizer.json",
                                                     "tokenizer_config.json",
                                                     "chat_template.jinja",
                                                     "generation_config.json",
                                                     "chat_template.json",
                                                     "LICENSE",
                                                     "LICENSE.txt",
                                                     "NOTICE"};

Result<std::uint64_t> file_checksum(const fs::path& path) {
  constexpr std::uint64_t kAtOnce = std::uint64_t{4} << 20;
  SLUICE_ASSIGN(const auto file, open_file(path));
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(file->size(), kAtOnce)));
  Checksum sum;
  for (std::uint64_t at = 0; at < file->size(); at += kAtOnce) {
    const auto part = std::span(buffer).first(static_cast<std::size_t>(std::min(file->size() - at, kAtOnce)));
    SLUICE_TRY(file->read_at(at, part));
    sum.add(part);
  }
  return sum.value();
}

std::uint64_t aligned(std::uint64_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

Result<void> plan_dense(const store::SourceForm& source, const PackOptions& options,
                        store::Manifest& manifest) {
  std::uint64_t at = 0;
  for (const store::DenseInfo& info : store::dense_tensors(manifest.config, manifest.has_mtp)) {
    SLUICE_ASSIGN(store::DenseFormat format, source.dense_format(info.name));
    if (!spec::is_quantised(format.format)) {
      format = store::packed_dense_format(info, options.dense, format.format);
    }
    store::StoredDense tensor{info.name, format.format, format.group, info.shape, {}};
    std::int64_t rows = 1;
    for (std::size_t i = 0; i + 1 < info.shape.size(); ++i) rows *= info.shape[i];
    const auto parts = store::tensor_parts(format.format, format.group, rows, info.shape.back());
    const auto add = [&](std::uint64_t bytes) {
      tensor.parts.push_back({at, bytes, 0});
      at = aligned(at + bytes);
    };
    add(parts.codes);
    if (spec::is_quantised(format.format)) {
      add(parts.scales);
      add(parts.scales);
    }
    manifest.dense.push_back(std::move(tensor));
  }
  manifest.dense_bytes = at;
  return {};
}

Result<spec::RecordLayout> tier_layout(const spec::RecordLayout& source, Format format,
                                       const std::string& what) {
  const bool quantised = spec::is_quantised(source.format);
  if (quantised && spec::bits_of(format) > spec::bits_of(source.format)) {
    return make_error(ErrorCode::kInvalidArgument, "{}: experts of {} bits found, {} cannot be made of them",
                      what, spec::bits_of(source.format), spec::bits_of(format));
  }
  spec::RecordLayout layout = source;
  layout.format = format;
  if (quantised) return layout;
  const auto& g = source.geometry;
  layout.geometry.group = g.hidden % 64 == 0 && g.inter % 64 == 0 ? 64 : 32;
  if (g.hidden % 32 != 0 || g.inter % 32 != 0) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: experts of widths {} and {} found, multiples of 32 needed", what, g.hidden,
                      g.inter);
  }
  return layout;
}

Result<void> plan_experts(const store::SourceForm& source, const PackOptions& options,
                          store::Manifest& manifest) {
  const spec::RecordLayout& own = source.record_layout();
  const std::string what = source.folder().string();
  if (options.keep_experts) {
    for (std::size_t t = 0; t < source.record_layouts().size(); ++t) {
      manifest.tiers.push_back({source.record_layouts()[t], source.record_method(t), 0});
    }
    return {};
  }
  std::uint64_t statistics = 0;
  if (!options.importance.empty()) {
    SLUICE_ASSIGN(statistics, file_checksum(options.importance));
  }
  std::vector<Format> wanted = options.experts;
  if (wanted.empty()) wanted = {Format::kQ4};
  std::sort(wanted.begin(), wanted.end(),
            [](Format a, Format b) { return spec::bits_of(a) > spec::bits_of(b); });
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  for (const Format format : wanted) {
    store::StoredTier tier;
    if (const auto kept = kept_tier(source, format)) {
      manifest.tiers.push_back({source.record_layouts()[*kept], source.record_method(*kept), 0});
      continue;
    }
    SLUICE_ASSIGN(tier.layout, tier_layout(own, format, what));
    const bool low = format == Format::kQ3 || format == Format::kQ2;
    tier.method = !low ? "quantised" : options.method == TierMethod::kTruncate ? "truncate" : "refit";
    if (tier.method == "refit" && !options.importance.empty()) tier.method = "refit, weighted";
    if (tier.method == "quantised" && !options.importance.empty()) tier.method = "quantised, weighted";
    if (tier.method.ends_with(", weighted")) tier.importance = statistics;
    manifest.tiers.push_back(std::move(tier));
  }
  return {};
}

Result<void> plan_ngram(const store::SourceForm& source, const PackOptions& options,
                        store::Manifest& manifest) {
  if (!manifest.config.ple) return {};
  std::int64_t page = 0;
  for (const std::int64_t layer : manifest.config.ple->layers) {
    store::StoredTable table;
    table.layer = layer;
    SLUICE_ASSIGN(table.layout, source.ngram_layout(layer));
    SLUICE_ASSIGN(table.hash, source.ngram_hash(layer));
    if (!options.keep_ngram) table.layout = store::packed_ngram_layout(table.layout);
    table.first_page = page;
    const store::NgramPages pages(table.layout);
    page += pages.pages;
    manifest.ngram_bytes += static_cast<std::uint64_t>(pages.bytes());
    manifest.tables.push_back(std::move(table));
  }
  manifest.ngram_blocks.resize(static_cast<std::size_t>(
      (static_cast<std::int64_t>(manifest.ngram_bytes) + store::kNgramBlock - 1) / store::kNgramBlock));
  return {};
}

Result<void> plan_files(const store::SourceForm& source, store::Manifest& manifest) {
  if (source.files().empty()) return {};  // it lies nowhere
  const fs::path& folder = source.folder();
  for (const std::string_view name : kCopied) {
    std::error_code ignored;
    if (!fs::is_regular_file(folder / name, ignored)) continue;
    SLUICE_ASSIGN(const std::string text, read_text_file(folder / name, kMostCopied));
    manifest.files.push_back({std::string(name), text.size(), checksum(std::as_bytes(std::span(text)))});
  }
  return {};
}

}  // namespace

Result<store::Manifest> plan_store(const store::SourceForm& source, const PackOptions& options) {
  store::Manifest manifest;
  std::error_code ignored;
  fs::path real = fs::weakly_canonical(source.folder(), ignored);
  if (!real.has_filename()) real = real.parent_path();
  manifest.source_name = options.source_name.empty() ? real.filename().string() : options.source_name;
  manifest.source_revision = options.source_revision;
  manifest.source_form = source.form();
  manifest.source_files = source.files();
  manifest.missing = source.missing();
  manifest.config_json = source.config_json();
  manifest.config = source.config();
  manifest.has_mtp = source.has_mtp();
  SLUICE_TRY(plan_dense(source, options, manifest));
  SLUICE_TRY(plan_experts(source, options, manifest));
  SLUICE_TRY(plan_ngram(source, options, manifest));
  SLUICE_TRY(plan_files(source, manifest));
  return manifest;
}

std::span<const std::string_view> copied_files() {
  return kCopied;
}

bool is_copied_file(std::string_view name) {
  return std::find(kCopied.begin(), kCopied.end(), name) != kCopied.end();
}

}  // namespace sluice::pack
