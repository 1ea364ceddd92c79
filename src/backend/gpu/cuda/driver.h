// NVIDIA's driver as far as we use it, found at run time: one binary serves machines with and without it.
//
// Types and values are the driver's own (cuda.h), declared here so that building needs none of NVIDIA's
// files; abi_check.cpp compares them with the real ones where those are installed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/result.h"

namespace sluice::gpu::cuda {

using Status = int;  // CUresult
constexpr Status kSuccess = 0;
constexpr Status kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY
constexpr Status kNotReady = 600;   // CUDA_ERROR_NOT_READY

using DeviceNumber = int;  // CUdevice
using Address = unsigned long long;
using Context = struct ContextObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;
using Stream = struct StreamObject*;
using Event = struct EventObject*;
using Graph = struct GraphObject*;
using GraphNode = struct GraphNodeObject*;
using GraphExec = struct GraphExecObject*;

constexpr int kAttributeMultiprocessors = 16;  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
constexpr int kAttributeCapabilityMajor = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kAttributeCapabilityMinor = 76;
constexpr int kFunctionMostShared = 8;       // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kFunctionCarveout = 9;         // CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
constexpr unsigned kStreamNonBlocking = 1;   // CU_STREAM_NON_BLOCKING
constexpr unsigned kEventDisableTiming = 2;  // CU_EVENT_DISABLE_TIMING
constexpr unsigned kHostPortable = 1;        // CU_MEMHOSTALLOC_PORTABLE
constexpr unsigned kHostDeviceMap = 2;       // CU_MEMHOSTALLOC_DEVICEMAP
constexpr unsigned kMemoryHost = 1;          // CU_MEMORYTYPE_HOST
constexpr unsigned kMemoryDevice = 2;        // CU_MEMORYTYPE_DEVICE

/// CUDA_KERNEL_NODE_PARAMS, version 2.
struct KernelNode {
  Function function;
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  void** params;
  void** extra;
  void* kernel;
  Context context;
};

/// CUgraphEdgeData.
struct GraphEdge {
  unsigned char from_port, to_port, type, reserved[5];
};
/// A kernel may start when all groups of the one before have started, and waits itself for what they do
/// (dialect/cuda.h): CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.
constexpr GraphEdge kEarlyEdge{1, 0, 1, {}};

/// CUDA_MEMCPY3D, version 2; one row of it.
struct CopyNode {
  std::size_t from_x, from_y, from_z, from_lod;
  unsigned from_type;
  const void* from_host;
  Address from_device;
  void* from_array;
  void* reserved0;
  std::size_t from_pitch, from_height;
  std::size_t to_x, to_y, to_z, to_lod;
  unsigned to_type;
  void* to_host;
  Address to_device;
  void* to_array;
  void* reserved1;
  std::size_t to_pitch, to_height;
  std::size_t width, height, depth;
};

/// CUDA_MEMSET_NODE_PARAMS, version 1.
struct FillNode {
  Address to;
  std::size_t pitch;
  unsigned value;
  unsigned element_bytes;
  std::size_t width, height;
};

// X(member, name of the driver's function, its parameters); the version suffixes are those of cuda.h.
#define SLUICE_CUDA_DRIVER(X)                                                                        \
  X(init, cuInit, (unsigned))                                                                        \
  X(driver_version, cuDriverGetVersion, (int*))                                                      \
  X(error_name, cuGetErrorName, (Status, const char**))                                              \
  X(error_string, cuGetErrorString, (Status, const char**))                                          \
  X(device_count, cuDeviceGetCount, (int*))                                                          \
  X(device_get, cuDeviceGet, (DeviceNumber*, int))                                                   \
  X(device_name, cuDeviceGetName, (char*, int, DeviceNumber))                                        \
  X(device_attribute, cuDeviceGetAttribute, (int*, int, DeviceNumber))                               \
  X(device_memory, cuDeviceTotalMem_v2, (std::size_t*, DeviceNumber))                                \
  X(context_retain, cuDevicePrimaryCtxRetain, (Context*, DeviceNumber))                              \
  X(context_reset, cuDevicePrimaryCtxReset_v2, (DeviceNumber))                                       \
  X(context_set, cuCtxSetCurrent, (Context))                                                         \
  X(module_load, cuModuleLoadData, (Module*, const void*))                                           \
  X(module_unload, cuModuleUnload, (Module))                                                         \
  X(module_function, cuModuleGetFunction, (Function*, Module, const char*))                          \
  X(function_set, cuFuncSetAttribute, (Function, int, int))                                          \
  X(memory_info, cuMemGetInfo_v2, (std::size_t*, std::size_t*))                                      \
  X(allocate, cuMemAlloc_v2, (Address*, std::size_t))                                                \
  X(free, cuMemFree_v2, (Address))                                                                   \
  X(allocate_host, cuMemHostAlloc, (void**, std::size_t, unsigned))                                  \
  X(free_host, cuMemFreeHost, (void*))                                                               \
  X(copy, cuMemcpyAsync, (Address, Address, std::size_t, Stream))                                    \
  X(fill, cuMemsetD8Async, (Address, unsigned char, std::size_t, Stream))                            \
  X(stream_create, cuStreamCreate, (Stream*, unsigned))                                              \
  X(stream_destroy, cuStreamDestroy_v2, (Stream))                                                    \
  X(stream_wait, cuStreamSynchronize, (Stream))                                                      \
  X(stream_after, cuStreamWaitEvent, (Stream, Event, unsigned))                                      \
  X(event_create, cuEventCreate, (Event*, unsigned))                                                 \
  X(event_destroy, cuEventDestroy_v2, (Event))                                                       \
  X(event_record, cuEventRecord, (Event, Stream))                                                    \
  X(event_wait, cuEventSynchronize, (Event))                                                         \
  X(launch, cuLaunchKernel,                                                                          \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, void**, \
     void**))                                                                                        \
  X(graph_create, cuGraphCreate, (Graph*, unsigned))                                                 \
  X(graph_destroy, cuGraphDestroy, (Graph))                                                          \
  X(graph_add_kernel, cuGraphAddKernelNode_v2,                                                       \
    (GraphNode*, Graph, const GraphNode*, std::size_t, const KernelNode*))                           \
  X(graph_add_copy, cuGraphAddMemcpyNode,                                                            \
    (GraphNode*, Graph, const GraphNode*, std::size_t, const CopyNode*, Context))                    \
  X(graph_add_fill, cuGraphAddMemsetNode,                                                            \
    (GraphNode*, Graph, const GraphNode*, std::size_t, const FillNode*, Context))                    \
  X(graph_instantiate, cuGraphInstantiateWithFlags, (GraphExec*, Graph, unsigned long long))         \
  X(graph_launch, cuGraphLaunch, (GraphExec, Stream))                                                \
  X(exec_destroy, cuGraphExecDestroy, (GraphExec))                                                   \
  X(exec_set_kernel, cuGraphExecKernelNodeSetParams_v2, (GraphExec, GraphNode, const KernelNode*))   \
  X(exec_set_copy, cuGraphExecMemcpyNodeSetParams, (GraphExec, GraphNode, const CopyNode*, Context)) \
  X(exec_set_fill, cuGraphExecMemsetNodeSetParams, (GraphExec, GraphNode, const FillNode*, Context))

/// Functions of the driver; what is called is what `name_of` calls it in errors.
struct Driver {
#define SLUICE_CUDA_MEMBER(member, name, parameters) Status(*member) parameters = nullptr;
  SLUICE_CUDA_DRIVER(SLUICE_CUDA_MEMBER)
#undef SLUICE_CUDA_MEMBER
  /// cuFuncGetParamInfo (offset and size of a kernel's parameter); null in drivers before 12.4.
  Status (*param_info)(Function, std::size_t, std::size_t*, std::size_t*) = nullptr;
  /// cuGraphAddDependencies_v2; null in drivers before 12.3.
  Status (*graph_add_edges)(Graph, const GraphNode*, const GraphNode*, const GraphEdge*,
                            std::size_t) = nullptr;

  /// "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered".
  [[nodiscard]] std::string describe(Status status) const;
};

/// The driver of this machine, loaded once. Fails with kUnsupported where there is none, or one too old to
/// have what we call.
Result<const Driver*> load_driver();

/// The same from a given file or name, for tests of what is said when it is not there.
Result<Driver> load_driver_from(const char* library);

}  // namespace sluice::gpu::cuda
