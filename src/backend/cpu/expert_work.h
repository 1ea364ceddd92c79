// How the experts of a step are dealt to threads.
#pragma once

#include <cstdint>

#include "backend/cpu/work_line.h"
#include "backend/types.h"

namespace sluice::backend {

/// Pairs of entry u of a batch.
inline std::int64_t pairs_of(const ExpertBatch& batch, std::int64_t u) {
  return batch.begin.address()[u + 1] - std::int64_t{batch.begin.address()[u]};
}

/// The entries [first, last) of a batch as one line of work: each is `units` units long, a unit costing as
/// much as decoding its weights and multiplying them with the entry's pairs. An entry without pairs may not
/// have been read: it costs nothing and is never touched.
inline auto expert_work(const ExpertBatch& batch, std::int64_t first, std::int64_t last, std::int64_t units) {
  return WorkLine(
      first, last, [units](std::int64_t) { return units; },
      [batch](std::int64_t u) {
        const std::int64_t pairs = pairs_of(batch, u);
        return pairs == 0 ? 0 : 2 + pairs;
      });
}

}  // namespace sluice::backend
