#include "base/whole_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace sluice {
namespace {

constexpr std::uint64_t kBlock = DirectFile::kAlignment;
constexpr std::uint64_t kMostAtOnce = 4 * kBlock;

}  // namespace

Result<std::unique_ptr<File>> WholeBlocks::open(const std::filesystem::path& path) {
  SLUICE_ASSIGN(auto file, DirectFile::open(path));
  return std::unique_ptr<File>(new WholeBlocks(std::move(file)));
}

Result<void> WholeBlocks::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  const std::uint64_t whole = size() / kBlock * kBlock;  // of the file, in whole blocks
  alignas(kBlock) std::array<std::byte, kMostAtOnce> blocks;
  while (!to.empty() && offset < whole) {
    const std::uint64_t first = offset / kBlock * kBlock;
    const std::uint64_t wanted = std::min<std::uint64_t>(to.size(), whole - offset);
    const std::uint64_t end = std::min((offset + wanted + kBlock - 1) / kBlock * kBlock, first + kMostAtOnce);
    SLUICE_TRY(file_->read_at(first, std::span(blocks).first(end - first)));
    const std::uint64_t got = std::min(wanted, end - offset);
    std::memcpy(to.data(), blocks.data() + (offset - first), got);
    to = to.subspan(got);
    offset += got;
  }
  return to.empty() ? Result<void>{} : file_->read_at(offset, to);
}

}  // namespace sluice
