// A device over Metal 3. It has never run: what is above it is shared with the emulated and the CUDA device
// and tested there, and the kernels' text is checked in form (scripts/check-metal).
//
// Memory is shared storage: the host reads and writes it once the commands before have ended. Kernels get
// addresses in their arguments, so that every buffer is declared to every encoder.
#include "backend/gpu/metal/metal_device.h"

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <cstring>
#include <map>
#include <optional>
#include <vector>

namespace sluice::gpu {
namespace {

constexpr char kText[] =
#include "kernels.metal.inc"
    ;

// Launches of a command buffer: enough that its own cost is small, few enough that the device begins early.
constexpr int kBatch = 128;
constexpr std::size_t kMostArgs = 4096;  // of setBytes
constexpr std::uint32_t kLanes = 32;
// How many cores there are is not told; what is built has 7 to 80.
constexpr std::uint32_t kCores = 20;

std::string text_of(NSError* error) {
  return error == nil ? "no reason given" : error.localizedDescription.UTF8String;
}

using Pipelines = std::array<id<MTLComputePipelineState>, kKernelCount>;

Result<Pipelines> compile(id<MTLDevice> device) {
  MTLCompileOptions* options = [[MTLCompileOptions alloc] init];
  options.languageVersion = MTLLanguageVersion3_1;
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
  // NaN and the order of sums must be what the text says.
  options.fastMathEnabled = NO;
#pragma clang diagnostic pop
  NSError* error = nil;
  id<MTLLibrary> library = [device newLibraryWithSource:@(kText) options:options error:&error];
  if (library == nil) {
    return make_error(ErrorCode::kDevice, "metal: the kernels do not compile: {}", text_of(error));
  }
  Pipelines pipelines;
  for (std::size_t i = 0; i < kKernelCount; ++i) {
    if (kKernels[i].large > 0) continue;  // not among Metal's, and not launched
    id<MTLFunction> function = [library newFunctionWithName:@(kKernels[i].name)];
    if (function != nil) {
      pipelines[i] = [device newComputePipelineStateWithFunction:function error:&error];
    }
    if (pipelines[i] == nil) {
      return make_error(ErrorCode::kDevice, "metal: kernel {}: {}", kKernels[i].name, text_of(error));
    }
    if (pipelines[i].threadExecutionWidth != kLanes ||
        pipelines[i].maxTotalThreadsPerThreadgroup < kKernels[i].threads) {
      return make_error(
          ErrorCode::kUnsupported,
          "metal: kernel {} needs groups of {} threads and SIMD groups of {}, it gets {} and {}",
          kKernels[i].name, kKernels[i].threads, kLanes, pipelines[i].maxTotalThreadsPerThreadgroup,
          pipelines[i].threadExecutionWidth);
    }
  }
  return pipelines;
}

class MetalDevice final : public Device {
 public:
  MetalDevice(id<MTLDevice> device, id<MTLCommandQueue> queue, Pipelines pipelines)
      : device_(device), queue_(queue), pipelines_(std::move(pipelines)), name_(device.name.UTF8String) {}
  ~MetalDevice() override { wait(); }

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::uint32_t multiprocessors() const override { return kCores; }
  [[nodiscard]] std::uint64_t memory_bytes() const override { return device_.recommendedMaxWorkingSetSize; }

  Result<std::uint64_t> allocate(std::size_t bytes) override {
    @autoreleasepool {
      id<MTLBuffer> buffer = [device_ newBufferWithLength:bytes options:MTLResourceStorageModeShared];
      if (buffer == nil) {
        const std::uint64_t used = device_.currentAllocatedSize;
        return make_error(ErrorCode::kOutOfMemory,
                          "metal: {} bytes asked for, {} are free, a buffer has {} at most", bytes,
                          memory_bytes() > used ? memory_bytes() - used : 0, device_.maxBufferLength);
      }
      const std::uint64_t address = buffer.gpuAddress;
      buffers_.emplace(address, buffer);
      if (encoder_ != nil) declare(buffer);
      return address;
    }
  }
  void free(std::uint64_t address) override {
    wait();
    buffers_.erase(address);
  }
  Result<std::byte*> allocate_host(std::size_t bytes) override {
    // What the host calls an address is another number than what kernels do.
    return make_error(ErrorCode::kUnsupported,
                      "metal: {} bytes of host memory at an address that kernels share: Metal has none",
                      bytes);
  }
  void free_host(std::byte* /*address*/) override {}

  void upload(std::uint64_t to, std::span<const std::byte> from) override {
    if (from.empty()) return;
    wait();
    std::byte* at = host("upload", to, from.size());
    if (at != nullptr) std::memcpy(at, from.data(), from.size());
  }
  void download(std::span<std::byte> to, std::uint64_t from) override {
    if (to.empty()) return;
    wait();
    const std::byte* at = host("download", from, to.size());
    if (at != nullptr) {
      std::memcpy(to.data(), at, to.size());
    } else {
      std::memset(to.data(), 0, to.size());
    }
  }
  void copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) override {
    if (bytes == 0) return;
    std::byte* target = host("copy to", to, bytes);
    const std::byte* source = host("copy from", from, bytes);
    if (target == nullptr || source == nullptr) return;
    const bool overlap = to < from + bytes && from < to + bytes;
    if (overlap || (to | from | bytes) % 4 != 0) {
      wait();
      if (!failure_) std::memmove(target, source, bytes);
      return;
    }
    @autoreleasepool {
      const Place here = *place(to, bytes);
      const Place there = *place(from, bytes);
      id<MTLBlitCommandEncoder> blit = begin_blit();
      [blit copyFromBuffer:there.buffer
               sourceOffset:there.offset
                   toBuffer:here.buffer
          destinationOffset:here.offset
                       size:bytes];
      [blit endEncoding];
    }
  }
  void fill(std::uint64_t to, std::uint8_t value, std::size_t bytes) override {
    if (bytes == 0) return;
    std::byte* target = host("fill", to, bytes);
    if (target == nullptr) return;
    if ((to | bytes) % 4 != 0) {
      wait();
      if (!failure_) std::memset(target, value, bytes);
      return;
    }
    @autoreleasepool {
      const Place here = *place(to, bytes);
      id<MTLBlitCommandEncoder> blit = begin_blit();
      [blit fillBuffer:here.buffer range:NSMakeRange(here.offset, bytes) value:value];
      [blit endEncoding];
    }
  }

  using Device::launch;
  void launch(Kernel kernel, Grid grid, std::span<const std::byte> args) override {
    if (failure_) return;
    const auto id = static_cast<std::size_t>(kernel);
    if (args.empty() || args.size() > kMostArgs || grid.x == 0 || grid.y == 0 || grid.z == 0) {
      failure_ = make_error(ErrorCode::kDevice,
                            "metal: kernel {}: launched with an empty grid or {} bytes of arguments",
                            kKernels[id].name, args.size());
      return;
    }
    @autoreleasepool {
      begin_compute();
      [encoder_ setComputePipelineState:pipelines_[id]];
      [encoder_ setBytes:args.data() length:args.size() atIndex:0];
      [encoder_ dispatchThreadgroups:MTLSizeMake(grid.x, grid.y, grid.z)
               threadsPerThreadgroup:MTLSizeMake(kKernels[id].threads, 1, 1)];
      if (++launches_ == kBatch) submit();
    }
  }

  void synchronise() override { wait(); }
  [[nodiscard]] Result<void> status() const override {
    if (failure_) return *failure_;
    return {};
  }

 private:
  struct Place {
    id<MTLBuffer> buffer;
    std::size_t offset;
  };

  std::optional<Place> place(std::uint64_t address, std::size_t bytes) const {
    auto after = buffers_.upper_bound(address);
    if (after == buffers_.begin()) return std::nullopt;
    --after;
    const std::uint64_t offset = address - after->first;
    const std::uint64_t length = after->second.length;
    if (offset > length || bytes > length - offset) return std::nullopt;
    return Place{after->second, offset};
  }
  /// Where the host finds these bytes; null, and a failure, if they are not of this device, or it has failed.
  std::byte* host(const char* what, std::uint64_t address, std::size_t bytes) {
    if (failure_) return nullptr;
    const auto found = place(address, bytes);
    if (!found) {
      failure_ = make_error(ErrorCode::kDevice, "metal: {} of {} bytes out of bounds", what, bytes);
      return nullptr;
    }
    return static_cast<std::byte*>(found->buffer.contents) + found->offset;
  }

  void declare(id<MTLBuffer> buffer) {
    [encoder_ useResource:buffer usage:MTLResourceUsageRead | MTLResourceUsageWrite];
  }
  void begin_commands() {
    if (commands_ == nil) commands_ = [queue_ commandBuffer];
  }
  void begin_compute() {
    if (encoder_ != nil) return;
    begin_commands();
    // Serial: every launch sees what those before it wrote.
    encoder_ = [commands_ computeCommandEncoderWithDispatchType:MTLDispatchTypeSerial];
    for (const auto& [address, buffer] : buffers_) declare(buffer);
  }
  id<MTLBlitCommandEncoder> begin_blit() {
    end_compute();
    begin_commands();
    return [commands_ blitCommandEncoder];
  }
  void end_compute() {
    [encoder_ endEncoding];
    encoder_ = nil;
  }
  void submit() {
    if (commands_ == nil) return;
    end_compute();
    [commands_ commit];
    submitted_.push_back(commands_);
    commands_ = nil;
    launches_ = 0;
  }
  void wait() {
    @autoreleasepool {
      submit();
      for (id<MTLCommandBuffer> commands : submitted_) {
        [commands waitUntilCompleted];
        if (commands.status == MTLCommandBufferStatusError && !failure_) {
          failure_ = make_error(ErrorCode::kDevice, "metal: {}", text_of(commands.error));
        }
      }
      submitted_.clear();
    }
  }

  id<MTLDevice> device_;
  id<MTLCommandQueue> queue_;
  Pipelines pipelines_;
  std::string name_;
  std::map<std::uint64_t, id<MTLBuffer>> buffers_;  // by the address that kernels know
  id<MTLCommandBuffer> commands_ = nil;
  id<MTLComputeCommandEncoder> encoder_ = nil;  // of commands_
  int launches_ = 0;
  std::vector<id<MTLCommandBuffer>> submitted_;
  std::optional<Error> failure_;
};

}  // namespace

Result<std::unique_ptr<Device>> open_metal_device() {
  @autoreleasepool {
    id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    if (device == nil) return make_error(ErrorCode::kUnsupported, "metal: this machine has no device");
    if (![device supportsFamily:MTLGPUFamilyMetal3] || ![device supportsFamily:MTLGPUFamilyApple7]) {
      return make_error(ErrorCode::kUnsupported,
                        "metal: {} is none of the Apple GPUs with Metal 3 (M1 and later)",
                        device.name.UTF8String);
    }
    id<MTLCommandQueue> queue = [device newCommandQueue];
    if (queue == nil) return make_error(ErrorCode::kDevice, "metal: no queue of commands");
    SLUICE_ASSIGN(Pipelines pipelines, compile(device));
    return std::unique_ptr<Device>(std::make_unique<MetalDevice>(device, queue, std::move(pipelines)));
  }
}

}  // namespace sluice::gpu
