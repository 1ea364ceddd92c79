#include "experts/heat_file.h"

#include <cmath>
#include <cstring>
#include <string>

#include "base/checksum.h"
#include "base/file.h"
#include "base/output_file.h"

namespace sluice::experts {
namespace {

// 16 bytes of name, float32 little-endian, XXH3 of all before.
constexpr std::string_view kMagic = "sluice-heat 1\n";
constexpr std::size_t kHeader = 16;
constexpr std::size_t kSum = sizeof(std::uint64_t);
// Hotter than any sum of touches: half lives are hundreds of steps.
constexpr float kHottest = 64;

Error not_whole(const File& file) {
  return make_error(ErrorCode::kCorrupt, "{}: not a whole file of heats", file.name());
}

}  // namespace

Result<void> write_heat(const std::filesystem::path& file, std::span<const float> heat) {
  std::string text(kMagic);
  text.resize(kHeader);
  text.append(reinterpret_cast<const char*>(heat.data()), heat.size_bytes());
  const std::uint64_t sum = checksum(std::as_bytes(std::span(text)));
  text.append(reinterpret_cast<const char*>(&sum), kSum);
  return write_text_file(file, text);
}

Result<std::vector<float>> read_heat(const std::filesystem::path& path, std::size_t most) {
  SLUICE_ASSIGN(const auto file, open_file(path));
  constexpr std::uint64_t kMostBytes = std::uint64_t{64} << 20;
  if (file->size() < kHeader + kSum || file->size() > kMostBytes || file->size() % sizeof(float) != 0) {
    return not_whole(*file);
  }
  std::string text(static_cast<std::size_t>(file->size()), '\0');
  SLUICE_TRY(file->read_at(0, std::as_writable_bytes(std::span(text))));
  std::uint64_t sum = 0;
  std::memcpy(&sum, text.data() + text.size() - kSum, kSum);
  text.resize(text.size() - kSum);
  if (!text.starts_with(kMagic) || sum != checksum(std::as_bytes(std::span(text)))) return not_whole(*file);
  std::vector<float> heat(std::min(most, (text.size() - kHeader) / sizeof(float)));
  std::memcpy(heat.data(), text.data() + kHeader, heat.size() * sizeof(float));
  for (const float one : heat) {
    if (!std::isfinite(one) || one > kHottest) return not_whole(*file);
  }
  return heat;
}

}  // namespace sluice::experts
