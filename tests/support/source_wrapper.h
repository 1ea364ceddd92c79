// A source that passes everything on to another: the base of sources with faults.
#pragma once

#include <memory>
#include <utility>

#include "store/source.h"

namespace sluice::test {

class SourceWrapper : public store::WeightSource {
 public:
  explicit SourceWrapper(std::unique_ptr<store::WeightSource> inner) : inner_(std::move(inner)) {}

  [[nodiscard]] const spec::ModelConfig& config() const override { return inner_->config(); }
  [[nodiscard]] const Json& config_json() const override { return inner_->config_json(); }
  [[nodiscard]] const std::filesystem::path& folder() const override { return inner_->folder(); }
  [[nodiscard]] std::string form() const override { return inner_->form(); }
  [[nodiscard]] std::vector<store::SourceFile> files() const override { return inner_->files(); }
  [[nodiscard]] store::ParameterCounts parameters() const override { return inner_->parameters(); }
  [[nodiscard]] std::vector<std::string> missing() const override { return inner_->missing(); }
  [[nodiscard]] bool has_mtp() const override { return inner_->has_mtp(); }
  Result<store::DenseFormat> dense_format(std::string_view name) const override {
    return inner_->dense_format(name);
  }
  Result<store::DenseTensor> read_dense(std::string_view name) const override {
    return inner_->read_dense(name);
  }
  Result<store::DenseTensor> read_dense_rows(std::string_view name, std::int64_t first,
                                             std::int64_t rows) const override {
    return inner_->read_dense_rows(name, first, rows);
  }
  [[nodiscard]] const std::vector<spec::RecordLayout>& record_layouts() const override {
    return inner_->record_layouts();
  }
  [[nodiscard]] std::string record_method(std::size_t tier) const override {
    return inner_->record_method(tier);
  }
  Result<void> read_record(std::size_t tier, std::int64_t layer, std::int64_t expert,
                           std::span<std::byte> record) const override {
    return inner_->read_record(tier, layer, expert, record);
  }
  Result<void> read_slot(std::size_t tier, std::int64_t id, std::span<std::byte> slot) const override {
    return inner_->read_slot(tier, id, slot);
  }
  Result<spec::NgramHash> ngram_hash(std::int64_t layer) const override { return inner_->ngram_hash(layer); }
  Result<void> read_ngram_rows(std::int64_t layer, std::span<const std::int64_t> rows,
                               std::span<float> out) const override {
    return inner_->read_ngram_rows(layer, rows, out);
  }
  Result<spec::NgramLayout> ngram_layout(std::int64_t layer) const override {
    return inner_->ngram_layout(layer);
  }
  [[nodiscard]] store::NgramReads ngram_reads(std::int64_t layer) const override {
    return inner_->ngram_reads(layer);
  }
  Result<void> read_ngram_block(std::int64_t layer, std::int64_t number,
                                std::span<std::byte> block) const override {
    return inner_->read_ngram_block(layer, number, block);
  }
  Result<void> read_ngram_range(std::int64_t layer, std::int64_t first,
                                std::span<std::byte> out) const override {
    return inner_->read_ngram_range(layer, first, out);
  }
  [[nodiscard]] std::uint64_t ngram_bytes(std::int64_t layer) const override {
    return inner_->ngram_bytes(layer);
  }
  [[nodiscard]] std::vector<std::size_t> files_of_dense(std::string_view name) const override {
    return inner_->files_of_dense(name);
  }
  [[nodiscard]] std::vector<std::size_t> files_of_record(std::int64_t layer,
                                                         std::int64_t expert) const override {
    return inner_->files_of_record(layer, expert);
  }
  [[nodiscard]] std::vector<std::size_t> files_of_ngram(std::int64_t layer, std::int64_t first,
                                                        std::int64_t rows) const override {
    return inner_->files_of_ngram(layer, first, rows);
  }

 private:
  std::unique_ptr<store::WeightSource> inner_;
};

}  // namespace sluice::test
