// Our declarations of the driver (driver.h) against NVIDIA's own; compiled where those are installed, never
// called.
#include <cuda.h>

#include <type_traits>

#include "backend/gpu/cuda/driver.h"

namespace sluice::gpu::cuda {
namespace {

static_assert(kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY && kNotReady == CUDA_ERROR_NOT_READY);
static_assert(kAttributeMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kAttributeCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kAttributeCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kStreamNonBlocking == CU_STREAM_NON_BLOCKING && kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(kHostPortable == CU_MEMHOSTALLOC_PORTABLE && kHostDeviceMap == CU_MEMHOSTALLOC_DEVICEMAP);
static_assert(kMemoryHost == CU_MEMORYTYPE_HOST && kMemoryDevice == CU_MEMORYTYPE_DEVICE);

#define SLUICE_SAME(ours, our_member, theirs, their_member) \
  static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member))
using TheirKernel = CUDA_KERNEL_NODE_PARAMS_v2;
static_assert(sizeof(KernelNode) == sizeof(TheirKernel));
SLUICE_SAME(KernelNode, function, TheirKernel, func);
SLUICE_SAME(KernelNode, grid_z, TheirKernel, gridDimZ);
SLUICE_SAME(KernelNode, block_z, TheirKernel, blockDimZ);
SLUICE_SAME(KernelNode, shared_bytes, TheirKernel, sharedMemBytes);
SLUICE_SAME(KernelNode, params, TheirKernel, kernelParams);
SLUICE_SAME(KernelNode, kernel, TheirKernel, kern);
SLUICE_SAME(KernelNode, context, TheirKernel, ctx);
using TheirCopy = CUDA_MEMCPY3D;
static_assert(sizeof(CopyNode) == sizeof(TheirCopy));
SLUICE_SAME(CopyNode, from_type, TheirCopy, srcMemoryType);
SLUICE_SAME(CopyNode, from_host, TheirCopy, srcHost);
SLUICE_SAME(CopyNode, from_device, TheirCopy, srcDevice);
SLUICE_SAME(CopyNode, to_type, TheirCopy, dstMemoryType);
SLUICE_SAME(CopyNode, to_host, TheirCopy, dstHost);
SLUICE_SAME(CopyNode, to_device, TheirCopy, dstDevice);
SLUICE_SAME(CopyNode, width, TheirCopy, WidthInBytes);
SLUICE_SAME(CopyNode, depth, TheirCopy, Depth);
using TheirFill = CUDA_MEMSET_NODE_PARAMS;
static_assert(sizeof(FillNode) == sizeof(TheirFill));
SLUICE_SAME(FillNode, to, TheirFill, dst);
SLUICE_SAME(FillNode, value, TheirFill, value);
SLUICE_SAME(FillNode, element_bytes, TheirFill, elementSize);
SLUICE_SAME(FillNode, width, TheirFill, width);
static_assert(sizeof(GraphEdge) == sizeof(CUgraphEdgeData));
SLUICE_SAME(GraphEdge, from_port, CUgraphEdgeData, from_port);
SLUICE_SAME(GraphEdge, type, CUgraphEdgeData, type);
static_assert(kEarlyEdge.from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC &&
              kEarlyEdge.type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
#undef SLUICE_SAME

/// A parameter as the calling convention sees it: how wide, and whether an address.
template <class T>
constexpr std::size_t form() {
  return sizeof(T) * 2 + (std::is_pointer_v<T> ? 1 : 0);
}
template <class A, class B>
struct SameForm : std::false_type {};
template <class... A, class... B>
requires(sizeof...(A) == sizeof...(B)) struct SameForm<Status (*)(A...), CUresult (*)(B...)>
    : std::bool_constant<((form<A>() == form<B>()) && ...)> {
};

#define SLUICE_CUDA_CHECK(member, name, parameters) \
  static_assert(SameForm<decltype(Driver::member), decltype(&name)>::value, #name);
SLUICE_CUDA_DRIVER(SLUICE_CUDA_CHECK)
#undef SLUICE_CUDA_CHECK
static_assert(SameForm<decltype(Driver::param_info), decltype(&cuFuncGetParamInfo)>::value);
#if CUDA_VERSION >= 13000
static_assert(SameForm<decltype(Driver::graph_add_edges), decltype(&cuGraphAddDependencies)>::value);
#endif

}  // namespace
}  // namespace sluice::gpu::cuda
