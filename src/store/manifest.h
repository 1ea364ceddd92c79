// manifest.json: what a packed store holds. Written last, so that its presence means a complete store.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "spec/config.h"
#include "spec/formats.h"
#include "spec/ngram_hash.h"
#include "store/source.h"
#include "store/store_format.h"

namespace sluice::store {

/// A contiguous part of dense.bin.
struct FilePart {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};

/// A tensor in dense.bin: its data, or its codes, scales and biases, each aligned to 64 bytes.
struct StoredDense {
  std::string name;
  spec::Format format = spec::Format::kF32;
  int group = 64;
  std::vector<std::int64_t> shape;
  std::vector<FilePart> parts;
};

/// One precision of the routed experts: experts.<tag>.bin and experts.<tag>.sums.
struct StoredTier {
  spec::RecordLayout layout;
  std::string method;  // "source", "quantised", "truncate", "refit", "random"
  std::uint64_t sums_checksum = 0;
  std::uint64_t importance = 0;  // checksum of the statistics that weighted it; 0: none
};

/// One n-gram table in ngram.bin.
struct StoredTable {
  std::int64_t layer = 0;
  spec::NgramLayout layout;
  spec::NgramHash hash;
  std::int64_t first_page = 0;
};

/// A file copied as it was: tokenizer, templates, configs.
struct StoredFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};

struct Manifest {
  // The source, for people and for telling whether a store is of this checkpoint.
  std::string source_name;
  std::string source_revision;
  std::string source_form;
  std::vector<SourceFile> source_files;
  std::vector<std::string> missing;

  Json config_json;  // the model's config.json
  spec::ModelConfig config;
  bool has_mtp = false;

  std::uint64_t dense_bytes = 0;
  std::vector<StoredDense> dense;
  std::vector<StoredTier> tiers;  // best first
  std::vector<StoredTable> tables;
  std::uint64_t ngram_bytes = 0;
  std::vector<std::uint64_t> ngram_blocks;  // checksums
  /// Of the checksums of some pages: tells another model's table at once.
  std::uint64_t ngram_sample = 0;
  std::vector<StoredFile> files;

  /// Layers that own records.
  [[nodiscard]] std::int64_t record_layers() const { return config.layer_count() + (has_mtp ? 1 : 0); }
  [[nodiscard]] std::int64_t records() const { return record_layers() * config.experts; }
};

/// The file's text. Its first line holds the checksum of all that follows.
std::string manifest_text(const Manifest& manifest);

/// Reads and checks a manifest: its checksum, and that everything the config asks for is there with the
/// right sizes, inside its file. `what` names it in errors.
Result<Manifest> parse_manifest(std::string_view text, const std::string& what);

/// The manifest of the store in a folder.
Result<Manifest> read_manifest(const std::filesystem::path& folder);

/// Names of all files of a store but the manifest.
std::vector<std::string> file_names(const Manifest& manifest);
/// Bytes of all of them.
std::uint64_t store_bytes(const Manifest& manifest);

}  // namespace sluice::store
