#include "store/store_format.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/checksum.h"

namespace sluice::store {
namespace {

using spec::Format;

constexpr std::array<std::pair<Format, std::string_view>, 6> kTags = {{{Format::kF32, "f32"},
                                                                       {Format::kBf16, "bf16"},
                                                                       {Format::kQ8, "q8"},
                                                                       {Format::kQ4, "q4"},
                                                                       {Format::kQ3, "q3"},
                                                                       {Format::kQ2, "q2"}}};

}  // namespace

std::string_view format_tag(Format format) {
  const auto it = std::find_if(kTags.begin(), kTags.end(), [&](const auto& t) { return t.first == format; });
  return it->second;
}

Result<Format> parse_format_tag(std::string_view tag) {
  const auto it = std::find_if(kTags.begin(), kTags.end(), [&](const auto& t) { return t.second == tag; });
  if (it != kTags.end()) return it->first;
  return make_error(ErrorCode::kCorrupt, "format \"{}\" found; f32, bf16, q8, q4, q3 or q2 needed", tag);
}

std::string records_name(Format format) {
  return fmt::format("experts.{}.bin", format_tag(format));
}

std::string sums_name(Format format) {
  return fmt::format("experts.{}.sums", format_tag(format));
}

NgramPages::NgramPages(const spec::NgramLayout& layout) {
  const std::int64_t row = layout.row_bytes();
  page_bytes = kPageAlignment;
  while (page_bytes < row + kPageSumBytes) page_bytes *= 2;
  rows_per_page = (page_bytes - kPageSumBytes) / std::max<std::int64_t>(row, 1);
  pages = (layout.rows + rows_per_page - 1) / rows_per_page;
}

void put_u64(std::byte* to, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) to[i] = static_cast<std::byte>((value >> (8 * i)) & 0xffU);
}

std::uint64_t get_u64(const std::byte* from) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= std::uint64_t{std::to_integer<std::uint8_t>(from[i])} << (8 * i);
  return value;
}

void seal_page(std::span<std::byte> page, std::uint64_t number) {
  const auto body = page.first(page.size() - kPageSumBytes);
  put_u64(page.data() + body.size(), checksum(body, number));
}

bool is_sealed(std::span<const std::byte> page, std::uint64_t number) {
  const auto body = page.first(page.size() - kPageSumBytes);
  return get_u64(page.data() + body.size()) == checksum(body, number);
}

std::vector<std::int64_t> sampled_pages(std::int64_t pages) {
  constexpr std::int64_t kMost = 64;
  std::vector<std::int64_t> sample;
  const std::int64_t count = std::min(pages, kMost);
  for (std::int64_t i = 0; i < count; ++i) {
    sample.push_back(i * (pages - 1) / std::max<std::int64_t>(count - 1, 1));
  }
  return sample;
}

Result<std::uint64_t> ngram_sample(const File& file, std::int64_t page_bytes) {
  Checksum sample;
  std::array<std::byte, kPageSumBytes> sum{};
  for (const std::int64_t page : sampled_pages(static_cast<std::int64_t>(file.size()) / page_bytes)) {
    SLUICE_TRY(file.read_at(static_cast<std::uint64_t>((page + 1) * page_bytes - kPageSumBytes), sum));
    sample.add(sum);
  }
  return sample.value();
}

}  // namespace sluice::store
