// Who gives a step the expert records it needs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "backend/types.h"
#include "base/result.h"

namespace sluice::experts {

/// Records a step may read until the lease ends. Entries come in the order in which they can be computed:
/// the first `resident` are in memory already, the rest after wait_late().
class Lease {
 public:
  virtual ~Lease() = default;
  /// One entry a wanted expert; order()[i] is the place in the acquired ids of entry i.
  [[nodiscard]] virtual std::span<const backend::ExpertEntry> entries() const = 0;
  [[nodiscard]] virtual std::span<const std::uint32_t> order() const = 0;
  [[nodiscard]] virtual std::size_t resident() const = 0;
  /// Blocks until every late record is in memory; fails if one cannot be read.
  virtual Result<void> wait_late() = 0;
};

/// What a step's rows are: a prefill goes through the records once, decoding comes back to them.
enum class Use { kDecode, kPrefill };

/// What became of the records that were wanted, since the start.
struct ExpertCounts {
  std::uint64_t hits = 0;    // in memory
  std::uint64_t late = 0;    // being read ahead already
  std::uint64_t misses = 0;  // read only then
  std::uint64_t bytes_read = 0;
  std::uint64_t retries = 0;
  double wait_seconds = 0;  // for reads, with nothing left to compute
};

class ExpertProvider {
 public:
  virtual ~ExpertProvider() = default;
  /// Leases the records of `ids` (ascending, without repeats, at most most_at_once()) of one record layer.
  virtual Result<std::unique_ptr<Lease>> acquire(std::int64_t layer, std::span<const std::uint32_t> ids,
                                                 Use use) = 0;
  /// Records that one lease may have while another of that size exists.
  [[nodiscard]] virtual std::size_t most_at_once() const = 0;
  /// A step of the model is over.
  virtual void end_step() {}
  [[nodiscard]] virtual ExpertCounts counts() const { return {}; }
  /// Bytes of memory held for records.
  [[nodiscard]] virtual std::uint64_t bytes() const = 0;
};

/// Called during long loads with bytes done and in all.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

}  // namespace sluice::experts
