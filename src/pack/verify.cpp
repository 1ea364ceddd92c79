#include "pack/verify.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>

#include "base/checksum.h"
#include "base/threads.h"
#include "store/packed_store.h"

namespace sluice::pack {
namespace {

constexpr std::size_t kMostDetails = 100;

/// One piece of the store to check: its size, and what finds out whether it is whole.
struct Piece {
  std::uint64_t bytes = 0;
  std::function<Result<void>()> check;
};

Result<void> check_range(const File& file, std::uint64_t offset, std::uint64_t bytes, std::uint64_t needed,
                         std::uint64_t seed, std::string_view what) {
  constexpr std::uint64_t kAtOnce = std::uint64_t{4} << 20;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min(bytes, kAtOnce)));
  Checksum sum(seed);
  for (std::uint64_t done = 0; done < bytes;) {
    const auto part = std::span(buffer).first(static_cast<std::size_t>(std::min(bytes - done, kAtOnce)));
    SLUICE_TRY(file.read_at(offset + done, part));
    sum.add(part);
    done += part.size();
  }
  if (sum.value() == needed) return {};
  return make_error(ErrorCode::kCorrupt, "{}: {}: checksum {} found, {} needed", file.name(), what,
                    checksum_text(sum.value()), checksum_text(needed));
}

/// Between the parts of dense.bin lie zeros.
Result<void> check_zeros(const File& file, std::uint64_t offset, std::uint64_t bytes) {
  std::vector<std::byte> gap(static_cast<std::size_t>(bytes));
  SLUICE_TRY(file.read_at(offset, gap));
  if (std::all_of(gap.begin(), gap.end(), [](std::byte b) { return b == std::byte{}; })) return {};
  return make_error(ErrorCode::kCorrupt, "{}: padding at offset {}: other bytes than zeros found",
                    file.name(), offset);
}

void add_dense(const store::PackedStore& store, std::vector<Piece>& pieces) {
  struct Part {
    store::FilePart place;
    const std::string* name;
  };
  std::vector<Part> parts;
  for (const store::StoredDense& tensor : store.manifest().dense) {
    for (const store::FilePart& part : tensor.parts) parts.push_back({part, &tensor.name});
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.place.offset < b.place.offset; });
  std::uint64_t at = 0;
  const File& file = store.dense_file();
  const auto add_gap = [&](std::uint64_t to) {
    if (to > at) pieces.push_back({to - at, [&file, at, to] { return check_zeros(file, at, to - at); }});
  };
  for (const Part& part : parts) {
    add_gap(part.place.offset);
    pieces.push_back({part.place.bytes, [&file, part] {
                        return check_range(file, part.place.offset, part.place.bytes, part.place.checksum, 0,
                                           "tensor " + *part.name);
                      }});
    at = part.place.offset + part.place.bytes;
  }
  add_gap(store.manifest().dense_bytes);
}

std::vector<Piece> list_pieces(const store::PackedStore& store) {
  std::vector<Piece> pieces;
  add_dense(store, pieces);
  const store::Manifest& manifest = store.manifest();
  for (std::size_t tier = 0; tier < manifest.tiers.size(); ++tier) {
    const auto slot = static_cast<std::uint64_t>(store::slot_bytes(manifest.tiers[tier].layout));
    const auto& sums = store.record_sums(tier);
    for (std::uint64_t id = 0; id < sums.size(); ++id) {
      pieces.push_back({slot, [&store, tier, slot, id, needed = sums[id]] {
                          const auto experts = static_cast<std::uint64_t>(store.config().experts);
                          return check_range(
                              store.records_file(tier), id * slot, slot, needed, id,
                              fmt::format("expert {} of layer {}", id % experts, id / experts));
                        }});
    }
  }
  for (std::size_t block = 0; block < manifest.ngram_blocks.size(); ++block) {
    const std::uint64_t from = block * static_cast<std::uint64_t>(store::kNgramBlock);
    const std::uint64_t bytes =
        std::min(manifest.ngram_bytes - from, static_cast<std::uint64_t>(store::kNgramBlock));
    pieces.push_back({bytes, [&store, from, bytes, block, needed = manifest.ngram_blocks[block]] {
                        return check_range(*store.ngram_file(), from, bytes, needed, 0,
                                           fmt::format("block {} (offset {})", block, from));
                      }});
  }
  return pieces;
}

}  // namespace

Result<VerifyReport> verify_store(const std::filesystem::path& folder, bool quick, int jobs,
                                  const Progress& progress) {
  SLUICE_ASSIGN(const auto store, store::PackedStore::open(folder));
  VerifyReport report;
  if (quick) return report;
  const std::vector<Piece> pieces = list_pieces(*store);
  std::uint64_t total = 0;
  for (const Piece& piece : pieces) total += piece.bytes;
  std::mutex mutex;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < pieces.size(); i = next++) {
      const auto checked = pieces[i].check();
      const std::scoped_lock lock(mutex);
      report.bytes += pieces[i].bytes;
      if (!checked.ok()) {
        ++report.damaged;
        if (report.details.size() < kMostDetails) report.details.push_back(checked.error().message);
      }
      if (progress) progress(report.bytes, total);
    }
  };
  ThreadTeam team(jobs > 0 ? jobs : ThreadTeam::default_size());
  team.parallel_for(static_cast<std::size_t>(team.size()), 1, [&](int, std::size_t, std::size_t) { work(); });
  std::sort(report.details.begin(), report.details.end());
  return report;
}

}  // namespace sluice::pack
