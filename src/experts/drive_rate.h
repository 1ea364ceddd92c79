// How fast this drive gives records.
#pragma once

#include "experts/record_reader.h"
#include "store/source.h"

namespace sluice::experts {

struct DriveRate {
  std::uint64_t records = 0;
  std::uint64_t record_bytes = 0;  // of a slot
  double seconds = 0;
  [[nodiscard]] double bytes_per_second() const {
    return seconds > 0 ? static_cast<double>(records * record_bytes) / seconds : 0;
  }
};

/// Reads random records of a precision, whole, verified and each once at most, as the pool does and with
/// nothing else to do: `options.depth` at once, for `seconds` or until `most` are read.
Result<DriveRate> measure_drive(const store::WeightSource& source, std::size_t tier, std::uint64_t most,
                                double seconds, const RecordReader::Options& options, bool ring);

}  // namespace sluice::experts
