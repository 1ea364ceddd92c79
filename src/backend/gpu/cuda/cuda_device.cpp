#include "backend/gpu/cuda/cuda_device.h"

#include <algorithm>
#include <cstring>

#include "backend/gpu/cuda/nodes.h"

namespace sluice::gpu::cuda {
namespace {

constexpr std::size_t kLandingBytes = std::size_t{4} << 20;
constexpr std::uint64_t kMostAtOnce = std::uint64_t{1} << 30;  // of one copy or fill by the driver
constexpr std::uint32_t kMostGroupsYZ = 65535;

}  // namespace

// --- memory ---

std::optional<std::uint64_t> CudaDevice::free_bytes() const {
  enter();
  std::size_t left = 0;
  std::size_t all = 0;
  if (machine_.failed() || machine_.driver->memory_info(&left, &all) != kSuccess) return 0;
  return left;
}

Result<std::uint64_t> CudaDevice::allocate(std::size_t bytes) {
  if (machine_.failed()) return *machine_.failure;
  enter();
  Address address = 0;
  const Status status = machine_.driver->allocate(&address, std::max<std::size_t>(bytes, 1));
  if (status == kSuccess) return std::uint64_t{address};
  std::size_t left = 0;
  std::size_t all = 0;
  machine_.driver->memory_info(&left, &all);
  const auto code = status == kOutOfMemory ? ErrorCode::kOutOfMemory : ErrorCode::kDevice;
  return make_error(code,
                    "cuda: cuMemAlloc: {}: {} bytes of device memory asked for, {} of {} are free on {}",
                    machine_.driver->describe(status), bytes, left, all, name_);
}

void CudaDevice::free(std::uint64_t address) {
  synchronise();
  enter();
  machine_.driver->free(address);  // of a device that is lost, nothing is left to free
}

Result<std::byte*> CudaDevice::allocate_host(std::size_t bytes) {
  if (machine_.failed()) return *machine_.failure;
  enter();
  void* memory = nullptr;
  const std::size_t size = std::max<std::size_t>(bytes, 1);
  const Status status = machine_.driver->allocate_host(&memory, size, kHostPortable | kHostDeviceMap);
  if (status != kSuccess) {
    const auto code = status == kOutOfMemory ? ErrorCode::kOutOfMemory : ErrorCode::kDevice;
    return make_error(code, "cuda: cuMemHostAlloc: {}: {} bytes of pinned host memory asked for",
                      machine_.driver->describe(status), bytes);
  }
  hosts_.emplace(reinterpret_cast<std::uint64_t>(memory), size);
  return static_cast<std::byte*>(memory);
}

void CudaDevice::free_host(std::byte* address) {
  synchronise();
  enter();
  if (hosts_.erase(reinterpret_cast<std::uint64_t>(address)) > 0) machine_.driver->free_host(address);
}

bool CudaDevice::is_host(std::uint64_t address) const {
  auto block = hosts_.upper_bound(address);
  if (block == hosts_.begin()) return false;
  --block;
  return address - block->first < block->second;
}

// --- commands ---

void CudaDevice::launch(Kernel kernel, Grid grid, std::span<const std::byte> args) {
  if (machine_.failed()) return;
  const auto id = static_cast<std::uint32_t>(kernel);
  const KernelFunction& function = machine_.kernels[id];
  if (args.size() != function.args || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > kMostGroupsYZ ||
      grid.z > kMostGroupsYZ) {
    machine_.failure = make_error(
        ErrorCode::kDevice,
        "cuda: kernel {} launched with {} bytes of arguments and {} x {} x {} groups: needed {}, and 1 to {} "
        "groups in y and z",
        function.name, args.size(), grid.x, grid.y, grid.z, function.args, kMostGroupsYZ);
    return;
  }
  list_.kernel(id, grid, args);
  last_kernel_ = function.name;
  recorded();
}

void CudaDevice::upload(std::uint64_t to, std::span<const std::byte> from) {
  if (machine_.failed() || from.empty()) return;
  if (from.size() <= kHostMove) {
    list_.upload(to, from);
    recorded();
    return;
  }
  submit();
  enter();
  for (std::size_t at = 0; at < from.size(); at += StagingRing::kPieceBytes) {
    const std::size_t now = std::min(StagingRing::kPieceBytes, from.size() - at);
    std::byte* piece = ring_->take(now);
    if (piece == nullptr) return;
    std::memcpy(piece, from.data() + at, now);
    if (!machine_.check(
            machine_.driver->copy(to + at, reinterpret_cast<Address>(piece), now, machine_.stream),
            "cuMemcpyAsync", [&] { return fmt::format("upload of {} bytes to {:#x}", from.size(), to); })) {
      return;
    }
    pending_ = true;
    beside_->submitted();
    ++counters_.direct_commands;
    if (checking_) wait();
  }
}

void CudaDevice::download(std::span<std::byte> to, std::uint64_t from) {
  if (to.empty()) return;
  if (!machine_.failed() && landing_->data() == nullptr) {
    enter();
    if (!landing_->allocate(kLandingBytes)) {
      machine_.fail("cuMemHostAlloc", kOutOfMemory,
                    fmt::format("{} bytes of pinned memory for downloads", kLandingBytes));
    }
  }
  for (std::size_t at = 0; at < to.size() && !machine_.failed(); at += kLandingBytes) {
    const std::size_t now = std::min(kLandingBytes, to.size() - at);
    move(reinterpret_cast<std::uint64_t>(landing_->data()), true, from + at, is_host(from + at), now);
    submit();
    wait();
    if (!machine_.failed()) std::memcpy(to.data() + at, landing_->data(), now);
  }
  if (machine_.failed()) std::memset(to.data(), 0, to.size());
}

void CudaDevice::copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
  move(to, is_host(to), from, is_host(from), bytes);
}

void CudaDevice::move(std::uint64_t to, bool to_host, std::uint64_t from, bool from_host, std::size_t bytes) {
  if (machine_.failed() || bytes == 0) return;
  if (bytes <= (to_host || from_host ? kHostMove : kDeviceMove)) {
    const CopyArgs args{to, from, bytes};
    list_.kernel(kCopyKernel, move_grid(bytes), std::as_bytes(std::span(&args, 1)));
    return recorded();
  }
  for (std::uint64_t at = 0; at < bytes; at += kMostAtOnce) {
    list_.copy(to + at, to_host, from + at, from_host, std::min(kMostAtOnce, bytes - at));
    recorded();
  }
}

void CudaDevice::fill(std::uint64_t to, std::uint8_t value, std::size_t bytes) {
  if (machine_.failed() || bytes == 0) return;
  if (bytes <= kDeviceMove) {
    const FillArgs args{to, bytes, value};
    list_.kernel(kFillKernel, move_grid(bytes), std::as_bytes(std::span(&args, 1)));
    return recorded();
  }
  for (std::uint64_t at = 0; at < bytes; at += kMostAtOnce) {
    list_.fill(to + at, value, std::min(kMostAtOnce, bytes - at));
    recorded();
  }
}

void CudaDevice::copy_beside(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
  if (machine_.failed() || bytes == 0) return;
  submit();
  enter();
  ++counters_.copies_beside;
  beside_->copy(to, from, bytes);
  if (checking_) beside_->wait();
}

void CudaDevice::join_copies() {
  // What was issued before does not wait for copies: it goes first.
  submit();
  enter();
  if (beside_->join()) pending_ = true;
}

void CudaDevice::synchronise() {
  submit();
  wait();
  beside_->wait();
}

Result<void> CudaDevice::status() const {
  if (machine_.failure) return *machine_.failure;
  return {};
}

// --- submission ---

void CudaDevice::recorded() {
  ++counters_.commands;
  if (list_.size() < limit_ && !checking_) return;
  limit_ = std::min(2 * limit_, kLongestList);
  submit();
}

void CudaDevice::submit() {
  if (list_.size() == 0) return;
  if (!machine_.failed()) {
    enter();
    ++counters_.lists;
    pending_ = true;
    beside_->submitted();
    if (checking_ || !graphs_->run(list_)) {
      for (const Command& command : list_.commands()) run(command);
    }
  }
  list_.clear();
}

void CudaDevice::run(const Command& command) {
  if (machine_.failed()) return;
  const Driver& driver = *machine_.driver;
  const auto about = [&] { return describe(machine_, command); };
  ++counters_.direct_commands;
  if (command.is_kernel()) {
    const std::byte* args = list_.args().data() + command.args;
    std::uint64_t staging = 0;
    if (command.kind == Command::Kind::kUpload) {
      CopyArgs upload;
      std::memcpy(&upload, args, sizeof upload);
      std::byte* piece = ring_->take(upload.bytes);
      if (piece == nullptr) return;
      std::memcpy(piece, list_.uploads().data() + upload.from, upload.bytes);
      staging = reinterpret_cast<std::uint64_t>(piece) - upload.from;
    }
    KernelCall call(machine_, command, args, staging);
    machine_.check(call.launch(machine_), "cuLaunchKernel", about);
  } else if (command.kind == Command::Kind::kCopy) {
    machine_.check(driver.copy(command.to, command.from, command.bytes, machine_.stream), "cuMemcpyAsync",
                   about);
  } else {
    machine_.check(
        driver.fill(command.to, static_cast<unsigned char>(command.from), command.bytes, machine_.stream),
        "cuMemsetD8Async", about);
  }
  if (checking_) {
    machine_.check(driver.stream_wait(machine_.stream), "cuStreamSynchronize", about);
  }
}

/// Where what runs asynchronously fails, if it does.
void CudaDevice::wait() {
  limit_ = kFirstList;
  if (machine_.failed() || !pending_) return;
  enter();
  pending_ = false;
  ++counters_.waits;
  machine_.check(machine_.driver->stream_wait(machine_.stream), "cuStreamSynchronize", [&] {
    return fmt::format("in one of {} commands, the last kernel was {}; SLUICE_CUDA_CHECK=1 names the one",
                       counters_.commands, last_kernel_);
  });
  beside_->waited();
}

}  // namespace sluice::gpu::cuda
