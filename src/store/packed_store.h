// A packed store as a source of weights.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "base/direct_file.h"
#include "base/file.h"
#include "store/kept_table.h"
#include "store/manifest.h"
#include "store/source.h"

namespace sluice::store {

class PackedStore final : public WeightSource {
 public:
  /// See open_store.
  static Result<std::unique_ptr<PackedStore>> open(const std::filesystem::path& folder);

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] const File& dense_file() const { return *dense_file_; }
  /// The records of one precision and their checksums.
  [[nodiscard]] const File& records_file(std::size_t tier) const { return *tiers_[tier].file; }
  [[nodiscard]] const std::vector<std::uint64_t>& record_sums(std::size_t tier) const {
    return tiers_[tier].sums;
  }
  [[nodiscard]] const File* ngram_file() const { return ngram_file_.get(); }

  [[nodiscard]] const spec::ModelConfig& config() const override { return manifest_.config; }
  [[nodiscard]] const std::filesystem::path& folder() const override { return folder_; }
  [[nodiscard]] std::string form() const override;
  [[nodiscard]] std::vector<SourceFile> files() const override;
  [[nodiscard]] std::optional<std::uint64_t> packed_bytes() const override { return store_bytes(manifest_); }
  [[nodiscard]] ParameterCounts parameters() const override;
  [[nodiscard]] std::vector<std::string> missing() const override { return manifest_.missing; }
  [[nodiscard]] bool has_mtp() const override { return manifest_.has_mtp; }
  [[nodiscard]] const Json& config_json() const override { return manifest_.config_json; }
  Result<DenseFormat> dense_format(std::string_view name) const override;
  Result<DenseTensor> read_dense(std::string_view name) const override;
  Result<DenseTensor> read_dense_rows(std::string_view name, std::int64_t first,
                                      std::int64_t rows) const override;
  [[nodiscard]] const std::vector<spec::RecordLayout>& record_layouts() const override { return layouts_; }
  [[nodiscard]] std::string record_method(std::size_t tier) const override {
    return manifest_.tiers[tier].method;
  }
  Result<void> read_record(std::size_t tier, std::int64_t layer, std::int64_t expert,
                           std::span<std::byte> record) const override;
  [[nodiscard]] std::optional<SlotPlace> slot_place(std::size_t tier, std::int64_t id) const override;
  Result<void> check_slot(std::size_t tier, std::int64_t id, std::span<const std::byte> slot) const override;
  Result<void> read_slot(std::size_t tier, std::int64_t id, std::span<std::byte> slot) const override;
  Result<spec::NgramHash> ngram_hash(std::int64_t layer) const override;
  Result<void> read_ngram_rows(std::int64_t layer, std::span<const std::int64_t> rows,
                               std::span<float> out) const override;
  Result<spec::NgramLayout> ngram_layout(std::int64_t layer) const override;
  [[nodiscard]] NgramReads ngram_reads(std::int64_t layer) const override;
  Result<void> read_ngram_block(std::int64_t layer, std::int64_t number,
                                std::span<std::byte> block) const override;
  Result<void> read_ngram_range(std::int64_t layer, std::int64_t first,
                                std::span<std::byte> out) const override;
  [[nodiscard]] std::uint64_t ngram_bytes(std::int64_t layer) const override;
  [[nodiscard]] std::vector<std::size_t> files_of_dense(std::string_view name) const override;
  [[nodiscard]] std::vector<std::size_t> files_of_record(std::int64_t layer,
                                                         std::int64_t expert) const override;
  [[nodiscard]] std::vector<std::size_t> files_of_ngram(std::int64_t layer, std::int64_t first,
                                                        std::int64_t rows) const override;

 private:
  struct Tier {
    std::unique_ptr<File> file;
    std::unique_ptr<DirectFile> direct;  // the same file for whole slots
    std::vector<std::uint64_t> sums;
  };

  Result<std::unique_ptr<File>> open_sized(std::string_view name, std::uint64_t bytes) const;
  Result<void> open_tier(const StoredTier& tier);
  Result<void> check_sample() const;
  Result<void> check_record(std::size_t tier, std::int64_t id, std::uint64_t sum) const;
  Result<const StoredDense*> dense_of(std::string_view name) const;
  Result<const StoredTable*> table_of(std::int64_t layer) const;
  Result<void> read_part(const StoredDense& tensor, std::size_t part, std::span<std::byte> out) const;
  Result<void> read_page(const File& file, std::int64_t page, std::span<std::byte> out) const;
  Result<std::span<const std::byte>> kept_pages() const;

  std::filesystem::path folder_;
  Manifest manifest_;
  std::unique_ptr<File> dense_file_;
  std::vector<Tier> tiers_;
  std::vector<spec::RecordLayout> layouts_;
  std::unique_ptr<File> ngram_file_;
  std::unique_ptr<DirectFile> ngram_direct_;  // the same file for whole pages
  std::unique_ptr<KeptTable> kept_ = std::make_unique<KeptTable>();
};

}  // namespace sluice::store
