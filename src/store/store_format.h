// The files of a packed store and how their bytes are laid out (docs/store.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "spec/formats.h"

namespace sluice::store {

constexpr int kStoreVersion = 1;
constexpr std::string_view kManifestName = "manifest.json";
constexpr std::string_view kDenseName = "dense.bin";
constexpr std::string_view kNgramName = "ngram.bin";

/// "q4", "bf16": a format in file names and the manifest.
std::string_view format_tag(spec::Format format);
Result<spec::Format> parse_format_tag(std::string_view tag);

/// "experts.q4.bin", "experts.q4.sums".
std::string records_name(spec::Format format);
std::string sums_name(spec::Format format);

/// Record slots begin and end on multiples of this: what direct I/O and every page size need.
constexpr std::int64_t kSlotAlignment = 16384;
constexpr std::int64_t slot_bytes(const spec::RecordLayout& layout) {
  return (layout.bytes() + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

/// n-gram rows lie in pages, never across two: one row is one read of one page, which ends in a checksum of
/// the rest of it, seeded with the page's number in the file. A page is 4 KiB, or the least power of two that
/// holds a row.
struct NgramPages {
  explicit NgramPages(const spec::NgramLayout& layout);
  std::int64_t page_bytes = 0;
  std::int64_t rows_per_page = 0;
  std::int64_t pages = 0;
  [[nodiscard]] std::int64_t page_of(std::int64_t row) const { return row / rows_per_page; }
  [[nodiscard]] std::int64_t bytes() const { return pages * page_bytes; }
};
constexpr std::int64_t kPageAlignment = 4096;
constexpr std::int64_t kPageSumBytes = 8;

/// ngram.bin is hashed in blocks of this many bytes.
constexpr std::int64_t kNgramBlock = std::int64_t{64} << 20;

/// Writes a page's checksum into its end; tells whether it is right.
void seal_page(std::span<std::byte> page, std::uint64_t number);
bool is_sealed(std::span<const std::byte> page, std::uint64_t number);

/// Pages whose checksums tell one model's table from another's: at most 64, the first and the last among
/// them.
std::vector<std::int64_t> sampled_pages(std::int64_t pages);
/// Checksum of the checksums of the sampled pages of a file.
Result<std::uint64_t> ngram_sample(const File& file, std::int64_t page_bytes);

/// Little-endian 64-bit numbers in bytes.
void put_u64(std::byte* to, std::uint64_t value);
std::uint64_t get_u64(const std::byte* from);

}  // namespace sluice::store
