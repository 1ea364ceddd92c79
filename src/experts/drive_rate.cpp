#include "experts/drive_rate.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <system_error>

#include "base/buffer.h"
#include "experts/source_slots.h"
#include "store/store_format.h"

namespace sluice::experts {

Result<DriveRate> measure_drive(const store::WeightSource& source, std::size_t tier, std::uint64_t most,
                                double seconds, const RecordReader::Options& options, bool ring) {
  DriveRate rate;
  rate.record_bytes = static_cast<std::uint64_t>(store::slot_bytes(source.record_layouts()[tier]));
  const std::int64_t records = source.config().record_layers() * source.config().experts;
  std::vector<std::int64_t> order(static_cast<std::size_t>(records));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(std::random_device{}()));
  order.resize(std::min<std::uint64_t>(order.size(), most));

  const auto slots = static_cast<std::size_t>(options.depth);
  SLUICE_ASSIGN(auto memory, AlignedBuffer::create(slots * rate.record_bytes, 4096));
  std::vector<std::unique_ptr<Read>> reads;
  std::string note;
  std::unique_ptr<RecordReader> reader;
  try {
    reader = make_reader(slots_of(source, {tier}, records), memory.bytes(), rate.record_bytes, options, ring,
                         note);
  } catch (const std::system_error& error) {
    return make_error(ErrorCode::kOutOfMemory, "threads to read experts: {}", error.what());
  }
  const double begin = steady_seconds();
  std::size_t next = 0;
  const auto more = [&] { return next < order.size() && steady_seconds() - begin < seconds; };
  while (reads.size() < slots && more()) {
    Read& read = *reads.emplace_back(std::make_unique<Read>());
    read.id = order[next++];
    read.slot = memory.bytes().subspan((reads.size() - 1) * rate.record_bytes, rate.record_bytes);
    reader->start(read, Priority::kDemand);
  }
  std::vector<Read*> flying;
  for (const auto& read : reads) flying.push_back(read.get());
  while (!flying.empty()) {
    reader->wait_any(flying);
    for (std::size_t i = 0; i < flying.size();) {
      Read& read = *flying[i];
      if (!reader->is_done(read)) {
        ++i;
        continue;
      }
      SLUICE_TRY(reader->wait(read));
      ++rate.records;
      if (more()) {
        read.id = order[next++];
        reader->start(read, Priority::kDemand);
        ++i;
      } else {
        flying.erase(flying.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  rate.seconds = steady_seconds() - begin;
  return rate;
}

}  // namespace sluice::experts
