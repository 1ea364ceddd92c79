// What memory this process may use: the machine's, and that of the control groups it runs in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

/// /proc/meminfo, in bytes.
struct MemoryInfo {
  std::uint64_t total = 0;
  std::uint64_t available = 0;  // without swapping: free memory and what the page cache would give back
  std::uint64_t swap_total = 0;
  std::uint64_t swap_free = 0;
};

/// Needs MemTotal; without MemAvailable (old kernels) free, buffers and cache count as available.
Result<MemoryInfo> parse_meminfo(std::string_view text);

/// Limits of the control groups around this process. Limits nest: the smallest counts, and so does the
/// smallest room, which may be that of another group.
struct GroupMemory {
  std::uint64_t limit = 0;  // smallest limit
  std::uint64_t room = 0;   // smallest of limit less use; page cache that can be given back is no use
};

/// Reads the groups of both versions under `root`: proc/self/cgroup says where the process is, sys/fs/cgroup
/// holds the files. Every group from there up to the root is looked at; one that is not visible (a container
/// sees its own only) is passed over. nullopt: no limit found.
std::optional<GroupMemory> read_group_memory(const std::filesystem::path& root = "/");

/// Text of a file of /proc or of a control group, which have no size to read by. Empty where there is none.
std::string system_file(const std::filesystem::path& path);

/// The folder of this process's version 2 control group under `root`; nullopt: there is none.
std::optional<std::filesystem::path> own_group_folder(const std::filesystem::path& root = "/");

struct Machine {
  MemoryInfo memory;
  std::optional<GroupMemory> group;
  int cores = 1;  // physical ones this process may use

  /// Bytes that can be used without swapping, now.
  [[nodiscard]] std::uint64_t available() const;
  /// The most that could ever be: the machine's memory, or the groups' limit.
  [[nodiscard]] std::uint64_t total() const;
};

/// Fails with kIo where the system does not tell.
Result<Machine> read_machine();

}  // namespace sluice
