#include "base/machine.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "base/threads.h"

#ifdef __APPLE__
#include <mach/mach.h>
#include <sys/sysctl.h>
#endif

namespace sluice {
namespace {

namespace fs = std::filesystem;

/// The whole number at the start of `text`, after blanks.
std::optional<std::uint64_t> number(std::string_view text) {
  const std::size_t start = text.find_first_not_of(" \t\n");
  if (start == std::string_view::npos) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data() + start, text.data() + text.size(), value);
  if (ec != std::errc{}) return std::nullopt;
  return value;
}

/// Calls fn(line) for each line.
void each_line(std::string_view text, const std::function<void(std::string_view)>& fn) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    fn(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// A value of a flat "key value" file such as memory.stat; 0 where it is missing.
std::uint64_t stat_value(std::string_view text, std::string_view key) {
  std::uint64_t value = 0;
  each_line(text, [&](std::string_view line) {
    if (line.size() > key.size() && line.starts_with(key) && line[key.size()] == ' ') {
      value = number(line.substr(key.size())).value_or(0);
    }
  });
  return value;
}

/// A limit; nullopt for "max" (version 2) and for the huge number that means none in version 1.
std::optional<std::uint64_t> limit_of(const fs::path& file) {
  constexpr std::uint64_t kNone = std::uint64_t{1} << 60;
  const auto value = number(system_file(file));
  return value && *value < kNone ? value : std::nullopt;
}

/// Names of the files of one version.
struct GroupFiles {
  std::vector<const char*> limits;
  const char* use;
  const char* inactive;
  const char* active;
};

// The kernel slows a group down at memory.high long before it stops it at memory.max.
const GroupFiles kVersion1 = {
    {"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};
const GroupFiles kVersion2 = {
    {"memory.max", "memory.high"}, "memory.current", "inactive_file", "active_file"};

void look_at(const fs::path& folder, const GroupFiles& files, std::optional<GroupMemory>& found) {
  std::optional<std::uint64_t> limit;
  for (const char* name : files.limits) {
    const auto one = limit_of(folder / name);
    if (one) limit = std::min(limit.value_or(*one), *one);
  }
  if (!limit) return;
  const std::uint64_t use = number(system_file(folder / files.use)).value_or(0);
  const std::string stat = system_file(folder / "memory.stat");
  const std::uint64_t cache = stat_value(stat, files.inactive) + stat_value(stat, files.active);
  const std::uint64_t held = use - std::min(use, cache);
  const std::uint64_t room = *limit - std::min(*limit, held);
  found = {std::min(found ? found->limit : *limit, *limit), std::min(found ? found->room : room, room)};
}

/// The group `path` below the mounted `base`, and every group above it.
void walk_up(const fs::path& base, std::string_view path, const GroupFiles& files,
             std::optional<GroupMemory>& found) {
  std::string rest(path);
  if (rest.find("..") != std::string::npos) rest.clear();  // outside what this container sees
  for (;;) {
    while (!rest.empty() && rest.back() == '/') rest.pop_back();
    look_at(rest.empty() ? base : base / fs::path(rest).relative_path(), files, found);
    if (rest.empty()) return;
    const std::size_t slash = rest.rfind('/');
    rest.resize(slash == std::string::npos ? 0 : slash);
  }
}

bool lists_memory(std::string_view controllers) {
  while (!controllers.empty()) {
    const std::size_t end = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, end) == "memory") return true;
    controllers.remove_prefix(std::min(end + 1, controllers.size()));
  }
  return false;
}

#ifdef __APPLE__
Result<MemoryInfo> read_memory() {
  MemoryInfo info;
  std::size_t size = sizeof(info.total);
  vm_statistics64_data_t pages{};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  if (sysctlbyname("hw.memsize", &info.total, &size, nullptr, 0) != 0 ||
      host_statistics64(mach_host_self(), HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages), &count) !=
          KERN_SUCCESS) {
    return make_error(ErrorCode::kIo, "memory of this machine: the system does not tell");
  }
  info.available = (std::uint64_t{pages.free_count} + pages.inactive_count + pages.purgeable_count) *
                   std::uint64_t{vm_kernel_page_size};
  return info;
}
#else
Result<MemoryInfo> read_memory() {
  const std::string text = system_file("/proc/meminfo");
  if (text.empty()) return make_error(ErrorCode::kIo, "/proc/meminfo: cannot be read");
  return parse_meminfo(text);
}
#endif

}  // namespace

std::string system_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

std::optional<fs::path> own_group_folder(const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  std::error_code ec;
  const bool unified = fs::exists(mounts / "cgroup.controllers", ec);
  std::optional<fs::path> folder;
  each_line(system_file(root / "proc/self/cgroup"), [&](std::string_view line) {
    if (!line.starts_with("0::/") || line.find("..") != std::string_view::npos) return;
    folder = (unified ? mounts : mounts / "unified") / fs::path(line.substr(3)).relative_path();
  });
  return folder;
}

Result<MemoryInfo> parse_meminfo(std::string_view text) {
  std::optional<std::uint64_t> total;
  std::optional<std::uint64_t> available;
  std::uint64_t loose = 0;
  MemoryInfo info;
  each_line(text, [&](std::string_view line) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) return;
    const std::string_view key = line.substr(0, colon);
    const auto kib = number(line.substr(colon + 1));
    if (!kib || *kib >= std::uint64_t{1} << 50) return;
    const std::uint64_t bytes = *kib * 1024;
    if (key == "MemTotal") total = bytes;
    if (key == "MemAvailable") available = bytes;
    if (key == "MemFree" || key == "Buffers" || key == "Cached") loose += bytes;
    if (key == "SwapTotal") info.swap_total = bytes;
    if (key == "SwapFree") info.swap_free = bytes;
  });
  if (!total) return make_error(ErrorCode::kCorrupt, "/proc/meminfo: no MemTotal found, one needed");
  info.total = *total;
  info.available = std::min(available.value_or(loose), *total);
  return info;
}

std::optional<GroupMemory> read_group_memory(const fs::path& root) {
  std::optional<GroupMemory> found;
  const fs::path mounts = root / "sys/fs/cgroup";
  std::error_code ec;
  const bool unified = fs::exists(mounts / "cgroup.controllers", ec);
  bool placed = false;
  // Lines of "number:controllers:path"; number 0 without controllers is version 2.
  each_line(system_file(root / "proc/self/cgroup"), [&](std::string_view line) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) return;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::string_view path = line.substr(second + 1);
    if (controllers.empty()) {
      walk_up(unified ? mounts : mounts / "unified", path, kVersion2, found);
    } else if (lists_memory(controllers)) {
      walk_up(mounts / "memory", path, kVersion1, found);
    } else {
      return;
    }
    placed = true;
  });
  if (!placed) {
    look_at(mounts, kVersion2, found);
    look_at(mounts / "memory", kVersion1, found);
  }
  return found;
}

std::uint64_t Machine::available() const {
  return group ? std::min(group->room, memory.available) : memory.available;
}

std::uint64_t Machine::total() const {
  return group ? std::min(group->limit, memory.total) : memory.total;
}

Result<Machine> read_machine() {
  Machine machine;
  SLUICE_ASSIGN(machine.memory, read_memory());
  machine.group = read_group_memory();
  machine.cores = ThreadTeam::default_size();
  return machine;
}

}  // namespace sluice
