// Finding and opening a GPU.
#include <cstdlib>

#include "backend/gpu/cuda/cuda_device.h"
#include "backend/gpu/cuda/image.h"

namespace sluice::gpu {
namespace cuda {
namespace {

// What the kernels need: bfloat16 in matrix units.
constexpr int kLeastCapability = 80;
// Multiplications of whole warpgroups: Hopper alone has them.
constexpr int kWideCapability = 90;

/// "0 (NVIDIA H200), 1 (NVIDIA H200)".
std::string list_devices(const Driver& driver, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) {
    DeviceNumber device = 0;
    char name[256] = "?";
    if (driver.device_get(&device, i) == kSuccess) driver.device_name(name, sizeof name, device);
    all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", i, name);
  }
  return all;
}

Error failed(const Driver& driver, const char* call, Status status, ErrorCode code = ErrorCode::kDevice) {
  return make_error(code, "cuda: {}: {}; --backend cpu runs without a GPU", call, driver.describe(status));
}

std::string version(int number) {
  return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
}

}  // namespace

CudaDevice::CudaDevice(const Driver& driver) {
  machine_.driver = &driver;
  machine_.kernels = kernel_functions();
  const char* check = std::getenv("SLUICE_CUDA_CHECK");
  checking_ = check != nullptr && *check != '\0' && *check != '0';
}

CudaDevice::~CudaDevice() {
  const Driver& driver = *machine_.driver;
  if (machine_.context == nullptr) return;
  enter();
  const bool lost = machine_.stream != nullptr && driver.stream_wait(machine_.stream) != kSuccess;
  beside_.reset();
  graphs_.reset();
  landing_.reset();
  ring_.reset();
  for (const auto& [address, bytes] : hosts_) driver.free_host(reinterpret_cast<void*>(address));
  if (machine_.stream != nullptr) driver.stream_destroy(machine_.stream);
  if (module_ != nullptr) driver.module_unload(module_);
  // The context stays for the next device object of this process, making one takes a third of a second; only
  // one that a kernel has ruined is given up.
  if (lost) driver.context_reset(device_);
}

Result<void> CudaDevice::check_device(int image_version) {
  const Driver& driver = *machine_.driver;
  char name[256] = "";
  driver.device_name(name, sizeof name, device_);
  name_ = name;
  int major = 0;
  int minor = 0;
  int processors = 0;
  std::size_t bytes = 0;
  if (const Status status = driver.device_attribute(&major, kAttributeCapabilityMajor, device_);
      status != kSuccess) {
    return failed(driver, "cuDeviceGetAttribute", status);
  }
  driver.device_attribute(&minor, kAttributeCapabilityMinor, device_);
  driver.device_attribute(&processors, kAttributeMultiprocessors, device_);
  driver.device_memory(&bytes, device_);
  multiprocessors_ = static_cast<std::uint32_t>(processors);
  memory_ = bytes;
  wide_ = major * 10 + minor == kWideCapability;
  if (major * 10 + minor < kLeastCapability) {
    return make_error(ErrorCode::kUnsupported,
                      "cuda: {} has compute capability {}.{}: {}.{} or newer is needed; --backend cpu runs "
                      "without it",
                      name_, major, minor, kLeastCapability / 10, kLeastCapability % 10);
  }
  int known = 0;
  driver.driver_version(&known);
  if (known / 1000 < image_version / 1000) {
    return make_error(ErrorCode::kUnsupported,
                      "cuda: the driver of {} is for CUDA {}: this build's kernels need one for {} or newer; "
                      "--backend cpu runs without it",
                      name_, version(known), version(image_version));
  }
  return {};
}

Result<void> CudaDevice::load(std::span<const std::byte> image) {
  const Driver& driver = *machine_.driver;
  if (const Status status = driver.module_load(&module_, image.data()); status != kSuccess) {
    return failed(driver, "cuModuleLoadData (the kernels of this build)", status);
  }
  for (KernelFunction& kernel : machine_.kernels) {
    if (const Status status = driver.module_function(&kernel.function, module_, kernel.name);
        status != kSuccess) {
      return make_error(ErrorCode::kDevice, "cuda: cuModuleGetFunction: {}: kernel {}",
                        driver.describe(status), kernel.name);
    }
    // Two compilers laid out the arguments: they must agree.
    std::size_t offset = 0;
    std::size_t bytes = kernel.args;
    if (driver.param_info != nullptr && driver.param_info(kernel.function, 0, &offset, &bytes) == kSuccess &&
        bytes != kernel.args) {
      return make_error(ErrorCode::kDevice, "cuda: kernel {} takes {} bytes of arguments, not {}",
                        kernel.name, bytes, kernel.args);
    }
    if (!wide_ || kernel.large == 0) continue;
    Status status = driver.function_set(kernel.function, kFunctionMostShared, static_cast<int>(kernel.large));
    if (status == kSuccess) status = driver.function_set(kernel.function, kFunctionCarveout, 100);
    if (status != kSuccess) {
      return make_error(ErrorCode::kDevice, "cuda: cuFuncSetAttribute: {}: kernel {}, {} bytes",
                        driver.describe(status), kernel.name, kernel.large);
    }
  }
  return {};
}

Result<void> CudaDevice::open(std::span<const std::byte> image, int image_version, int number) {
  const Driver& driver = *machine_.driver;
  // CUDA_ERROR_NO_DEVICE and its like: a driver, and nothing for it to drive.
  if (const Status status = driver.init(0); status != kSuccess) {
    return failed(driver, "cuInit", status, ErrorCode::kUnsupported);
  }
  int count = 0;
  if (const Status status = driver.device_count(&count); status != kSuccess) {
    return failed(driver, "cuDeviceGetCount", status);
  }
  if (count == 0) {
    return make_error(ErrorCode::kUnsupported,
                      "cuda: the driver finds no GPU; --backend cpu runs without one");
  }
  if (number < 0 || number >= count) {
    return make_error(ErrorCode::kInvalidArgument, "cuda: device {} asked for; this machine has {}", number,
                      list_devices(driver, count));
  }
  if (const Status status = driver.device_get(&device_, number); status != kSuccess) {
    return failed(driver, "cuDeviceGet", status);
  }
  SLUICE_TRY(check_device(image_version));
  if (const Status status = driver.context_retain(&machine_.context, device_); status != kSuccess) {
    machine_.context = nullptr;
    return failed(driver, "cuDevicePrimaryCtxRetain", status);
  }
  enter();
  if (const Status status = driver.stream_create(&machine_.stream, kStreamNonBlocking); status != kSuccess) {
    return failed(driver, "cuStreamCreate", status);
  }
  SLUICE_TRY(load(image));
  ring_ = std::make_unique<StagingRing>(machine_);
  landing_ = std::make_unique<HostBlock>(machine_);
  graphs_ = std::make_unique<GraphCache>(machine_, counters_);
  beside_ = std::make_unique<CopyQueue>(machine_);
  return {};
}

Result<std::unique_ptr<CudaDevice>> open_device(const Driver& driver, std::span<const std::byte> image,
                                                int image_version, int number) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(driver));
  SLUICE_TRY(device->open(image, image_version, number));
  return device;
}

}  // namespace cuda

Result<std::unique_ptr<Device>> open_cuda_device(int number) {
  const auto image = cuda::kernel_image();
  if (image.empty()) {
    return make_error(ErrorCode::kUnsupported,
                      "cuda: this build has no CUDA kernels (there was no nvcc); --backend cpu runs without");
  }
  SLUICE_ASSIGN(const cuda::Driver* driver, cuda::load_driver());
  SLUICE_ASSIGN(auto device, cuda::open_device(*driver, image, cuda::kernel_image_version(), number));
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace sluice::gpu
