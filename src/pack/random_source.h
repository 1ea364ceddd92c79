// A model of any geometry whose weights are random: for benchmarks and tests that need its size, not its
// knowledge.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "store/dense_table.h"
#include "store/source.h"

namespace sluice::pack {

struct RandomModel {
  Json config;  // without quantization; see spec::named_geometry
  std::uint64_t seed = 1;
  /// Precisions of the routed experts, 4, 3 and 2 bits. The lower ones are the 4-bit codes truncated, so that
  /// all precisions are of one model.
  std::vector<spec::Format> experts = {spec::Format::kQ4};
  store::DenseBits dense = store::DenseBits::kQ8;
  /// Experts of nothing but zeros: a store of them can be sparse (PackOptions::sparse).
  bool zero_experts = false;
};

/// Every weight is a function of the seed and of its place in the model: neither the order nor the thread in
/// which it is read matters. Values have mean 0 and deviation 1 / sqrt(inputs), so that activations keep
/// their size through any number of layers; norms are about 1, decays as trained models have them. Matrices
/// and n-gram rows come quantised as a store holds them.
class RandomSource final : public store::WeightSource {
 public:
  /// Errors: a config that is none, expert widths that groups of 32 do not divide, other precisions.
  static Result<std::unique_ptr<RandomSource>> create(const RandomModel& model);

  [[nodiscard]] const spec::ModelConfig& config() const override { return config_; }
  [[nodiscard]] const Json& config_json() const override { return config_json_; }
  [[nodiscard]] const std::filesystem::path& folder() const override { return folder_; }
  [[nodiscard]] std::string form() const override;
  [[nodiscard]] std::vector<store::SourceFile> files() const override { return {}; }
  [[nodiscard]] store::ParameterCounts parameters() const override;
  [[nodiscard]] std::vector<std::string> missing() const override;
  [[nodiscard]] bool has_mtp() const override { return config_.mtp_layers > 0; }
  Result<store::DenseFormat> dense_format(std::string_view name) const override;
  Result<store::DenseTensor> read_dense(std::string_view name) const override;
  Result<store::DenseTensor> read_dense_rows(std::string_view name, std::int64_t first,
                                             std::int64_t rows) const override;
  [[nodiscard]] const std::vector<spec::RecordLayout>& record_layouts() const override { return layouts_; }
  [[nodiscard]] std::string record_method(std::size_t) const override { return "random"; }
  Result<void> read_record(std::size_t tier, std::int64_t layer, std::int64_t expert,
                           std::span<std::byte> record) const override;
  Result<spec::NgramHash> ngram_hash(std::int64_t layer) const override;
  Result<void> read_ngram_rows(std::int64_t layer, std::span<const std::int64_t> rows,
                               std::span<float> out) const override;
  Result<spec::NgramLayout> ngram_layout(std::int64_t layer) const override;
  Result<void> read_ngram_range(std::int64_t layer, std::int64_t first,
                                std::span<std::byte> out) const override;
  [[nodiscard]] std::uint64_t ngram_bytes(std::int64_t layer) const override;
  [[nodiscard]] std::vector<std::size_t> files_of_dense(std::string_view) const override { return {}; }
  [[nodiscard]] std::vector<std::size_t> files_of_record(std::int64_t, std::int64_t) const override {
    return {};
  }
  [[nodiscard]] std::vector<std::size_t> files_of_ngram(std::int64_t, std::int64_t,
                                                        std::int64_t) const override {
    return {};
  }

  /// Scales and biases that groups of a matrix may have, one of them drawn for each group.
  struct Sides {
    std::array<std::uint16_t, 256> scales, biases;  // bfloat16
  };

 private:
  struct Table {
    spec::NgramHash hash;
    spec::NgramLayout layout;
  };

  RandomSource() = default;
  Result<const store::DenseInfo*> dense_of(std::string_view name) const;
  Result<const Table*> table_of(std::int64_t layer) const;
  void fill_matrix(const store::DenseInfo& info, std::int64_t first, store::DenseTensor& tensor) const;
  void fill_vector(const store::DenseInfo& info, store::DenseTensor& tensor) const;

  Json config_json_;
  spec::ModelConfig config_;
  std::filesystem::path folder_;  // none: what errors call it
  std::uint64_t seed_ = 1;
  store::DenseBits dense_bits_ = store::DenseBits::kQ8;
  bool zero_experts_ = false;
  std::map<std::string, store::DenseInfo, std::less<>> dense_;
  std::vector<spec::RecordLayout> layouts_;
  std::array<Sides, 3> record_sides_;  // of gate, up, down
  std::map<std::int64_t, Table> tables_;
};

}  // namespace sluice::pack
