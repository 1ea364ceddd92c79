#include "base/memory_nodes.h"

#include <charconv>
#include <climits>
#include <fstream>
#include <string>

#ifdef __linux__
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sluice {
namespace {

constexpr int kMostNodes = 1024;  // as many as Linux knows

/// A number at the start of `text`, which loses it.
std::optional<int> take_number(std::string_view& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value < 0 || value >= kMostNodes) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

#ifdef __linux__
bool has_own_policy() {
  int policy = MPOL_DEFAULT;
  return ::syscall(SYS_get_mempolicy, &policy, nullptr, 0UL, nullptr, 0UL) != 0 || policy != MPOL_DEFAULT;
}
#endif

}  // namespace

std::optional<std::vector<int>> parse_node_list(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::vector<int> nodes;
  while (true) {
    const auto first = take_number(text);
    if (!first) return std::nullopt;
    int last = *first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      const auto end = take_number(text);
      if (!end || *end < *first) return std::nullopt;
      last = *end;
    }
    for (int node = *first; node <= last; ++node) nodes.push_back(node);
    if (text.empty()) return nodes;
    if (!text.starts_with(',')) return std::nullopt;
    text.remove_prefix(1);
  }
}

const std::vector<int>& memory_nodes() {
  static const std::vector<int> nodes = [] {
    std::ifstream file("/sys/devices/system/node/has_memory");
    std::string line;
    std::getline(file, line);
    return parse_node_list(line).value_or(std::vector<int>{0});
  }();
  return nodes;
}

bool interleave([[maybe_unused]] std::span<std::byte> memory,
                [[maybe_unused]] const std::vector<int>& nodes) {
#ifdef __linux__
  constexpr std::size_t kBits = sizeof(unsigned long) * CHAR_BIT;
  unsigned long mask[kMostNodes / kBits] = {};
  for (const int node : nodes) {
    if (node < 0 || node >= kMostNodes) return false;
    mask[static_cast<std::size_t>(node) / kBits] |= 1UL << (static_cast<std::size_t>(node) % kBits);
  }
  // The kernel counts one bit less than it is told.
  return ::syscall(SYS_mbind, memory.data(), memory.size(), MPOL_INTERLEAVE, mask, kMostNodes + 1UL, 0U) == 0;
#else
  return false;
#endif
}

void spread_over_nodes([[maybe_unused]] std::span<std::byte> memory) {
#ifdef __linux__
  if (memory_nodes().size() < 2) return;
  static const bool own = has_own_policy();
  // Refused, pages come from where they are touched first: slower, not wrong.
  if (!own) (void)interleave(memory, memory_nodes());
#endif
}

}  // namespace sluice
