// The work of packing, in pieces that are done and recorded one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "store/manifest.h"
#include "store/source.h"

namespace sluice::pack {

enum class TaskKind : char {
  kDense = 'd',   // a tensor of dense.bin; index into Manifest::dense
  kRecord = 'r',  // one expert in all precisions; index: record id
  kNgram = 'n',   // a block of ngram.bin
};

struct Task {
  TaskKind kind = TaskKind::kDense;
  std::int64_t index = 0;
  std::uint64_t bytes = 0;         // written by it
  std::vector<std::size_t> files;  // of the source that it reads
};

/// All tasks, ordered by the last of the source's files each needs: a source can be read file by file, and
/// a file be forgotten when the tasks that need it are done.
std::vector<Task> list_tasks(const store::Manifest& manifest, const store::WeightSource& source);

}  // namespace sluice::pack
