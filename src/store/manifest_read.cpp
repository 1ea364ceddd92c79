#include <algorithm>
#include <limits>
#include <set>
#include <system_error>

#include "base/checksum.h"
#include "base/file.h"
#include "store/dense_table.h"
#include "store/manifest.h"
#include "store/matrix.h"

namespace sluice::store {
namespace {

/// Reads fields of the manifest; the first thing wrong is kept as the error.
class Reader {
 public:
  explicit Reader(const std::string& what) : what_(what) {}

  [[nodiscard]] bool ok() const { return !error_; }
  [[nodiscard]] const Error& error() const { return *error_; }
  void fail(std::string_view where, std::string_view found, std::string_view needed) {
    if (!error_) {
      error_ = make_error(ErrorCode::kCorrupt, "{}: {}: {} found, {} needed", what_, where, found, needed);
    }
  }

  const Json& child(const Json& parent, const char* key) {
    static const Json null;
    if (parent.is_object()) {
      if (const auto it = parent.find(key); it != parent.end()) return *it;
    }
    fail(key, "nothing", "a value");
    return null;
  }
  std::string text(const Json& parent, const char* key) {
    const Json& value = child(parent, key);
    if (value.is_string()) return value.get<std::string>();
    fail(key, "no text", "text");
    return {};
  }
  std::int64_t number(const Json& parent, const char* key) { return number(child(parent, key), key, 0); }
  std::int64_t number(const Json& value, const char* key, int) {
    constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
    if (value.is_number_unsigned() && value.get<std::uint64_t>() <= kMost) return value.get<std::int64_t>();
    fail(key, "no size", "a whole number from 0 on");
    return 0;
  }
  std::uint64_t bytes(const Json& parent, const char* key) {
    return static_cast<std::uint64_t>(number(parent, key));
  }
  std::uint64_t sum(const Json& value, const char* key) {
    if (value.is_string()) {
      if (const auto sum = parse_checksum(value.get<std::string>())) return *sum;
    }
    fail(key, "no checksum", "16 hexadecimal digits");
    return 0;
  }
  const Json& list(const Json& parent, const char* key) {
    static const Json empty = Json::array();
    const Json& value = child(parent, key);
    if (value.is_array()) return value;
    fail(key, "no list", "a list");
    return empty;
  }
  std::vector<std::int64_t> numbers(const Json& parent, const char* key) {
    std::vector<std::int64_t> out;
    for (const Json& value : list(parent, key)) {
      if (value.is_number_integer() && !value.is_number_unsigned()) {
        out.push_back(value.get<std::int64_t>());
      } else if (value.is_number_unsigned() &&
                 value.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
        out.push_back(value.get<std::int64_t>());
      } else {
        fail(key, "no number", "whole numbers");
      }
    }
    return out;
  }
  spec::Format format(const Json& parent) {
    const auto format = parse_format_tag(text(parent, "format"));
    if (format.ok()) return format.value();
    if (!error_) error_ = make_error(ErrorCode::kCorrupt, "{}: {}", what_, format.error().message);
    return spec::Format::kF32;
  }
  int group(const Json& parent, spec::Format format) {
    if (!spec::is_quantised(format)) return 64;
    const std::int64_t group = number(parent, "group");
    if (group == 32 || group == 64 || group == 128) return static_cast<int>(group);
    fail("group", fmt::format("{}", group), "32, 64 or 128");
    return 64;
  }
  void same(std::string_view where, std::int64_t found, std::int64_t needed) {
    if (found != needed) fail(where, fmt::format("{}", found), fmt::format("{}", needed));
  }

 private:
  const std::string& what_;
  std::optional<Error> error_;
};

/// A name of a file inside the store's folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos &&
         name != "." && name != "..";
}

void read_source(Reader& reader, const Json& root, Manifest& manifest) {
  const Json& source = reader.child(root, "source");
  manifest.source_name = reader.text(source, "name");
  manifest.source_revision = reader.text(source, "revision");
  manifest.source_form = reader.text(source, "form");
  for (const Json& file : reader.list(source, "files")) {
    manifest.source_files.push_back({reader.text(file, "name"), reader.bytes(file, "bytes"),
                                     reader.sum(reader.child(file, "header_xxh3"), "header_xxh3"), 0});
  }
  for (const Json& missing : reader.list(root, "missing")) {
    if (missing.is_string()) manifest.missing.push_back(missing.get<std::string>());
  }
}

/// Sizes of a tensor's parts, as its format and shape make them.
std::vector<std::uint64_t> part_sizes(const StoredDense& tensor) {
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows *= tensor.shape[i];
  const TensorParts parts = tensor_parts(tensor.format, tensor.group, rows, tensor.shape.back());
  if (!spec::is_quantised(tensor.format)) return {parts.codes};
  return {parts.codes, parts.scales, parts.scales};
}

void read_tensor(Reader& reader, const Json& entry, const DenseInfo& info, Manifest& manifest) {
  constexpr std::uint64_t kAlign = 64;
  StoredDense tensor;
  tensor.name = reader.text(entry, "name");
  tensor.format = reader.format(entry);
  tensor.group = reader.group(entry, tensor.format);
  tensor.shape = reader.numbers(entry, "shape");
  if (!reader.ok()) return;
  const auto wrong = [&](std::string_view found, std::string_view needed) {
    reader.fail(fmt::format("dense tensor {}", tensor.name), found, needed);
  };
  if (tensor.name != info.name) return wrong("it", info.name + " at this place");
  if (tensor.shape != info.shape) return wrong(shape_text(tensor.shape), shape_text(info.shape));
  const bool vector = info.kind != DenseKind::kMatrix;
  if (vector ? tensor.format != spec::Format::kF32
             : tensor.format == spec::Format::kQ3 || tensor.format == spec::Format::kQ2) {
    return wrong(format_tag(tensor.format), vector ? "f32" : "f32, bf16, q8 or q4");
  }
  if (spec::is_quantised(tensor.format) && tensor.shape.back() % tensor.group != 0) {
    return wrong(fmt::format("group {}", tensor.group), "a divisor of the columns");
  }
  const std::vector<std::uint64_t> sizes = part_sizes(tensor);
  const Json& parts = reader.list(entry, "parts");
  if (parts.size() != sizes.size()) {
    return wrong(fmt::format("{} parts", parts.size()), fmt::format("{}", sizes.size()));
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    FilePart part{reader.bytes(parts[i], "offset"), reader.bytes(parts[i], "bytes"),
                  reader.sum(reader.child(parts[i], "xxh3"), "xxh3")};
    if (!reader.ok()) return;
    if (part.bytes != sizes[i])
      return wrong(fmt::format("{} bytes", part.bytes), fmt::format("{}", sizes[i]));
    if (part.offset % kAlign != 0 || part.offset > manifest.dense_bytes ||
        part.bytes > manifest.dense_bytes - part.offset) {
      return wrong(fmt::format("{} bytes at offset {}", part.bytes, part.offset),
                   fmt::format("a multiple of 64 inside the {} bytes of dense.bin", manifest.dense_bytes));
    }
    tensor.parts.push_back(part);
  }
  manifest.dense.push_back(std::move(tensor));
}

void read_dense(Reader& reader, const Json& root, Manifest& manifest) {
  const Json& dense = reader.child(root, "dense");
  manifest.dense_bytes = reader.bytes(dense, "bytes");
  const std::vector<DenseInfo> infos = dense_tensors(manifest.config, manifest.has_mtp);
  const Json& list = reader.list(dense, "tensors");
  reader.same("dense tensors", std::ssize(list), std::ssize(infos));
  for (std::size_t i = 0; i < infos.size() && reader.ok(); ++i)
    read_tensor(reader, list[i], infos[i], manifest);
  // In the order of their offsets no two parts may share bytes.
  std::vector<FilePart> parts;
  for (const StoredDense& tensor : manifest.dense)
    parts.insert(parts.end(), tensor.parts.begin(), tensor.parts.end());
  std::sort(parts.begin(), parts.end(),
            [](const FilePart& a, const FilePart& b) { return a.offset < b.offset; });
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].offset < parts[i - 1].offset + parts[i - 1].bytes) {
      reader.fail("dense tensors", fmt::format("two at offset {}", parts[i].offset), "one");
    }
  }
}

void read_experts(Reader& reader, const Json& root, Manifest& manifest) {
  const Json& experts = reader.child(root, "experts");
  const spec::ModelConfig& config = manifest.config;
  reader.same("experts.layers", reader.number(experts, "layers"), manifest.record_layers());
  reader.same("experts.experts", reader.number(experts, "experts"), config.experts);
  reader.same("experts.hidden", reader.number(experts, "hidden"), config.hidden);
  reader.same("experts.inter", reader.number(experts, "inter"), config.expert_inter);
  std::set<spec::Format> seen;
  for (const Json& entry : reader.list(experts, "tiers")) {
    StoredTier tier;
    tier.layout.format = reader.format(entry);
    tier.layout.geometry = {config.hidden, config.expert_inter, 64};
    tier.layout.geometry.group = reader.group(entry, tier.layout.format);
    if (!reader.ok()) return;
    if (spec::is_quantised(tier.layout.format) && (config.hidden % tier.layout.geometry.group != 0 ||
                                                   config.expert_inter % tier.layout.geometry.group != 0)) {
      reader.fail("experts.group", fmt::format("{}", tier.layout.geometry.group), "a divisor of both widths");
    }
    if (!seen.insert(tier.layout.format).second) reader.fail("experts.tiers", "a format twice", "each once");
    tier.method = reader.text(entry, "method");
    reader.same("record_bytes", reader.number(entry, "record_bytes"), tier.layout.bytes());
    reader.same("slot_bytes", reader.number(entry, "slot_bytes"), slot_bytes(tier.layout));
    tier.sums_checksum = reader.sum(reader.child(entry, "sums_xxh3"), "sums_xxh3");
    if (entry.contains("importance_xxh3"))
      tier.importance = reader.sum(entry["importance_xxh3"], "importance_xxh3");
    manifest.tiers.push_back(tier);
  }
  if (manifest.tiers.empty()) reader.fail("experts.tiers", "none", "at least one");
}

void read_table(Reader& reader, const Json& entry, std::int64_t layer, Manifest& manifest) {
  const spec::PleConfig& ple = *manifest.config.ple;
  StoredTable table;
  table.layer = reader.number(entry, "layer");
  reader.same("ngram.layer", table.layer, layer);
  table.first_page = reader.number(entry, "first_page");
  table.layout.format = reader.format(entry);
  table.layout.group = reader.group(entry, table.layout.format);
  table.layout.rows = reader.number(entry, "rows");
  table.layout.columns = reader.number(entry, "columns");
  constexpr std::int64_t kMostRows = std::int64_t{1} << 44;
  if (table.layout.rows > kMostRows) reader.fail("ngram.rows", "more than 2^44", "fewer");
  reader.same("ngram.columns", table.layout.columns, ple.head_dim());
  if (table.layout.format == spec::Format::kQ3 || table.layout.format == spec::Format::kQ2) {
    reader.fail("ngram.format", format_tag(table.layout.format), "f32, bf16, q8 or q4");
  }
  if (spec::is_quantised(table.layout.format) && table.layout.columns % table.layout.group != 0) {
    reader.fail("ngram.group", fmt::format("{}", table.layout.group), "a divisor of the columns");
  }
  table.hash.multipliers = reader.numbers(entry, "multipliers");
  table.hash.sizes = reader.numbers(entry, "sizes");
  table.hash.offsets = reader.numbers(entry, "offsets");
  table.hash.rows = table.layout.rows;
  table.hash.heads_per_ngram = ple.heads_per_ngram;
  table.hash.eos = manifest.config.eos_token.value_or(-1);
  if (!reader.ok()) return;
  if (const auto checked = spec::check_ngram_hash(table.hash, ple, table.layout.rows); !checked.ok()) {
    return reader.fail("ngram", checked.error().message, "a hash inside the table");
  }
  reader.same("ngram.page_bytes", reader.number(entry, "page_bytes"), NgramPages(table.layout).page_bytes);
  manifest.tables.push_back(std::move(table));
}

void read_ngram(Reader& reader, const Json& root, Manifest& manifest) {
  if (!manifest.config.ple) return;
  const Json& ngram = reader.child(root, "ngram");
  manifest.ngram_bytes = reader.bytes(ngram, "bytes");
  reader.same("ngram.block_bytes", reader.number(ngram, "block_bytes"), kNgramBlock);
  for (const Json& block : reader.list(ngram, "blocks"))
    manifest.ngram_blocks.push_back(reader.sum(block, "blocks"));
  manifest.ngram_sample = reader.sum(reader.child(ngram, "sample"), "sample");
  const Json& tables = reader.list(ngram, "tables");
  const auto& layers = manifest.config.ple->layers;
  reader.same("ngram.tables", std::ssize(tables), std::ssize(layers));
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < layers.size() && reader.ok(); ++i) {
    read_table(reader, tables[i], layers[i], manifest);
    if (!reader.ok()) return;
    // All tables of a model have pages of one size, as their rows have one width and format.
    const NgramPages pages(manifest.tables.back().layout);
    reader.same("ngram.page_bytes", pages.page_bytes, NgramPages(manifest.tables.front().layout).page_bytes);
    reader.same("ngram.first_page", manifest.tables.back().first_page, bytes / pages.page_bytes);
    bytes += pages.bytes();
  }
  reader.same("ngram.bytes", static_cast<std::int64_t>(manifest.ngram_bytes), bytes);
  reader.same("ngram.blocks", std::ssize(manifest.ngram_blocks), (bytes + kNgramBlock - 1) / kNgramBlock);
}

}  // namespace

Result<Manifest> parse_manifest(std::string_view text, const std::string& what) {
  constexpr std::string_view kStart = "{\"xxh3\": \"";
  const std::size_t line = text.find('\n');
  const auto sum = text.starts_with(kStart) && line == kStart.size() + 18
                       ? parse_checksum(text.substr(kStart.size(), 16))
                       : std::nullopt;
  if (!sum) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: no manifest of a packed store: no checksum found in its first line", what);
  }
  const std::uint64_t found = checksum(std::as_bytes(std::span(text.substr(line + 1))));
  if (found != *sum) {
    return make_error(ErrorCode::kCorrupt, "{}: checksum {} found, {} needed: the file is damaged", what,
                      checksum_text(found), checksum_text(*sum));
  }
  SLUICE_ASSIGN(const Json root, parse_json(text, what));
  Reader reader(what);
  if (reader.text(root, "format") != "sluice-store") reader.fail("format", "another", "sluice-store");
  const std::int64_t version = reader.number(root, "version");
  if (reader.ok() && version != kStoreVersion) {
    return make_error(ErrorCode::kUnsupported, "{}: version {} found, {} needed: pack the model again", what,
                      version, kStoreVersion);
  }
  Manifest manifest;
  read_source(reader, root, manifest);
  manifest.config_json = reader.child(root, "config");
  if (!reader.ok()) return reader.error();
  SLUICE_ASSIGN(manifest.config, spec::parse_config(manifest.config_json, what));
  const Json& mtp = reader.child(root, "has_mtp");
  manifest.has_mtp = mtp.is_boolean() && mtp.get<bool>();
  if (manifest.has_mtp && manifest.config.mtp_layers == 0)
    reader.fail("has_mtp", "true", "false, as in the config");
  if (reader.ok()) read_dense(reader, root, manifest);
  if (reader.ok()) read_experts(reader, root, manifest);
  if (reader.ok()) read_ngram(reader, root, manifest);
  for (const Json& entry : reader.list(root, "files")) {
    StoredFile file{reader.text(entry, "name"), reader.bytes(entry, "bytes"),
                    reader.sum(reader.child(entry, "xxh3"), "xxh3")};
    if (!is_plain_name(file.name)) reader.fail("files", "\"" + file.name + "\"", "a name without a folder");
    manifest.files.push_back(std::move(file));
  }
  if (!reader.ok()) return reader.error();
  return manifest;
}

Result<Manifest> read_manifest(const std::filesystem::path& folder) {
  constexpr std::uint64_t kMost = std::uint64_t{64} << 20;
  const std::filesystem::path path = folder / kManifestName;
  std::error_code ec;
  if (!std::filesystem::exists(folder, ec)) {
    return make_error(ErrorCode::kNotFound, "{}: no such folder; a packed store needed", folder.string());
  }
  if (!std::filesystem::exists(path, ec)) {
    return make_error(ErrorCode::kNotFound, "{}: not a packed store: no {}", folder.string(), kManifestName);
  }
  SLUICE_ASSIGN(const std::string text, read_text_file(path, kMost));
  return parse_manifest(text, path.string());
}

std::vector<std::string> file_names(const Manifest& manifest) {
  std::vector<std::string> names{std::string(kDenseName)};
  for (const StoredTier& tier : manifest.tiers) {
    names.push_back(records_name(tier.layout.format));
    names.push_back(sums_name(tier.layout.format));
  }
  if (!manifest.tables.empty()) names.emplace_back(kNgramName);
  for (const StoredFile& file : manifest.files) names.push_back(file.name);
  return names;
}

std::uint64_t store_bytes(const Manifest& manifest) {
  std::uint64_t bytes = manifest.dense_bytes + manifest.ngram_bytes;
  for (const StoredTier& tier : manifest.tiers) {
    bytes += static_cast<std::uint64_t>(manifest.records() * (slot_bytes(tier.layout) + 8));
  }
  for (const StoredFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

}  // namespace sluice::store
