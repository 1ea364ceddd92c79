// Small models whose n-gram tables are read as if they were too large to keep, with faults where a test
// wants.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>

#include "pack/pack_folder.h"
#include "support/source_wrapper.h"

namespace sluice::test {

class StreamedNgrams final : public SourceWrapper {
 public:
  /// Called for every read of a block, before it is made; an error is the read's.
  using Fault = std::function<Result<void>(std::int64_t layer, std::int64_t number)>;

  using SourceWrapper::SourceWrapper;
  [[nodiscard]] store::NgramReads ngram_reads(std::int64_t layer) const override {
    store::NgramReads reads = SourceWrapper::ngram_reads(layer);
    reads.kept_bytes = 0;
    return reads;
  }
  Result<void> read_ngram_block(std::int64_t layer, std::int64_t number,
                                std::span<std::byte> block) const override {
    struct Count {
      std::atomic<int>& running;
      explicit Count(std::atomic<int>& r) : running(r) { ++running; }
      ~Count() { --running; }
    } const count(running_);
    ++reads_;
    // Nobody may take what a failed read left for a row.
    std::fill(block.begin(), block.end(), std::byte{0xee});
    if (fault) SLUICE_TRY(fault(layer, number));
    return SourceWrapper::read_ngram_block(layer, number, block);
  }
  [[nodiscard]] int running() const { return running_; }
  [[nodiscard]] int reads() const { return reads_; }

  Fault fault;  // to be set while nobody reads

 private:
  mutable std::atomic<int> running_ = 0, reads_ = 0;
};

/// Writes a random checkpoint with n-gram tables in layers 0 and 2.
inline void write_two_tables(const fs::path& folder, ModelForm form = ModelForm::kReleased) {
  fs::create_directories(folder);
  RandomModel model;
  model.config = tiny_config();
  model.config["text_config"]["ple_layer_ids"] = {1, 3};
  model.form = form;
  model.files = 2;
  write_random_model(folder, model);
}

inline std::unique_ptr<StreamedNgrams> open_streamed(const fs::path& folder) {
  return std::make_unique<StreamedNgrams>(open_folder(folder));
}

}  // namespace sluice::test
