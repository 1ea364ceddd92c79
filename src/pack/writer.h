// The files of a store being made, and the tasks that fill them.
#pragma once

#include <memory>
#include <vector>

#include "base/output_file.h"
#include "pack/convert.h"
#include "pack/journal.h"
#include "pack/tasks.h"
#include "store/manifest.h"
#include "store/source.h"

namespace sluice::pack {

class Writer {
 public:
  /// Creates or opens the data files in `folder` at their final sizes, their space reserved unless `sparse`.
  static Result<std::unique_ptr<Writer>> open(const std::filesystem::path& folder,
                                              const store::Manifest& manifest,
                                              const store::WeightSource& source, bool sparse);

  /// Does one task. Thread-safe; each thread has its own converter.
  Result<TaskSums> run(const Task& task, RecordConverter& converter);

  /// Returns when all that was written is on the disk.
  Result<void> sync();

  /// Checksum of the sampled pages of ngram.bin, read back.
  Result<std::uint64_t> ngram_sample() const;

 private:
  Writer(const store::Manifest& manifest, const store::WeightSource& source)
      : manifest_(manifest), source_(source) {}
  Result<TaskSums> write_dense(const store::StoredDense& tensor);
  Result<TaskSums> write_record(std::int64_t id, RecordConverter& converter);
  Result<TaskSums> write_ngram(std::int64_t block);

  const store::Manifest& manifest_;
  const store::WeightSource& source_;
  std::filesystem::path folder_;
  std::unique_ptr<OutputFile> dense_, ngram_;
  std::vector<std::unique_ptr<OutputFile>> records_;
};

}  // namespace sluice::pack
