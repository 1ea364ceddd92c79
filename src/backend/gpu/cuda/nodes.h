// Commands in the driver's form.
#pragma once

#include <span>

#include "backend/gpu/cuda/commands.h"

namespace sluice::gpu::cuda {

/// A kernel's parameters: its struct of arguments, an upload's with the place where its bytes are staged.
/// Points into itself and into the list it was made of.
class KernelCall {
 public:
  KernelCall(const Machine& machine, const Command& command, const std::byte* args, std::uint64_t staging)
      : kernel_(machine.kernels[command.kernel]), grid_(command.grid), param_(const_cast<std::byte*>(args)) {
    if (command.kind != Command::Kind::kUpload) return;
    std::memcpy(&upload_, args, sizeof upload_);
    upload_.from += staging;
    param_ = &upload_;
  }
  KernelCall(const KernelCall&) = delete;
  KernelCall& operator=(const KernelCall&) = delete;

  [[nodiscard]] KernelNode node() {
    return {kernel_.function, grid_.x, grid_.y, grid_.z, kernel_.threads, 1, 1,
            kernel_.large,    &param_, nullptr, nullptr, nullptr};
  }
  [[nodiscard]] Status launch(const Machine& machine) {
    return machine.driver->launch(kernel_.function, grid_.x, grid_.y, grid_.z, kernel_.threads, 1, 1,
                                  kernel_.large, machine.stream, &param_, nullptr);
  }

 private:
  const KernelFunction& kernel_;
  Grid grid_;
  CopyArgs upload_{};
  void* param_;
};

inline CopyNode copy_node(const Command& command) {
  CopyNode node{};
  node.from_type = command.from_host ? kMemoryHost : kMemoryDevice;
  node.to_type = command.to_host ? kMemoryHost : kMemoryDevice;
  if (command.from_host) {
    node.from_host = reinterpret_cast<const void*>(command.from);
  } else {
    node.from_device = command.from;
  }
  if (command.to_host) {
    node.to_host = reinterpret_cast<void*>(command.to);
  } else {
    node.to_device = command.to;
  }
  node.width = command.bytes;
  node.height = 1;
  node.depth = 1;
  return node;
}

inline FillNode fill_node(const Command& command) {
  return {command.to, 0, static_cast<unsigned>(command.from), 1, command.bytes, 1};
}

/// What was asked for, for errors.
inline std::string describe(const Machine& machine, const Command& command) {
  switch (command.kind) {
    case Command::Kind::kKernel:
    case Command::Kind::kUpload:
      return fmt::format("kernel {}, {} x {} x {} groups of {} threads", machine.kernels[command.kernel].name,
                         command.grid.x, command.grid.y, command.grid.z,
                         machine.kernels[command.kernel].threads);
    case Command::Kind::kCopy:
      return fmt::format("copy of {} bytes from {:#x} to {:#x}", command.bytes, command.from, command.to);
    case Command::Kind::kFill:
      return fmt::format("fill of {} bytes at {:#x}", command.bytes, command.to);
  }
  return {};
}

}  // namespace sluice::gpu::cuda
