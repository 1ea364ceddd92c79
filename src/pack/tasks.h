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

/// How many of the source's files have to be there at once for `tasks`, in the order of list_tasks, when
/// files come one after another, those that no task reads are passed over, and each goes as soon as the last
/// task that reads it is done.
///
/// With room for so many, tasks on any number of threads, each taking the next one and waiting for its files,
/// never wait for ever: of the tasks that are not done the first lacks only files up to its last one, and
/// before that one there are, all earlier tasks being done, only files which it or later tasks read.
std::size_t files_at_once(const std::vector<Task>& tasks);

}  // namespace sluice::pack
