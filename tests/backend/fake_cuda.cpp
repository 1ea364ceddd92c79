#include "backend/fake_cuda.h"

#include <algorithm>
#include <cstdlib>

namespace sluice::gpu::cuda {
namespace {

std::unique_ptr<FakeCuda> current;

constexpr Status kInvalidValue = 1;
constexpr Status kIllegalAddress = 700;

GraphNodeObject node_of(const KernelNode& params) {
  GraphNodeObject node;
  node.function = params.function;
  node.grid_x = params.grid_x;
  const auto* args = static_cast<const std::byte*>(params.params[0]);
  node.args.assign(args, args + params.function->args);
  return node;
}
GraphNodeObject node_of(const CopyNode& params) {
  GraphNodeObject node;
  node.kind = GraphNodeObject::Kind::kCopy;
  node.copy = params;
  return node;
}
GraphNodeObject node_of(const FillNode& params) {
  GraphNodeObject node;
  node.kind = GraphNodeObject::Kind::kFill;
  node.fill = params;
  return node;
}

template <class Params>
Status add(GraphNode* node, Graph graph, const GraphNode* before, std::size_t count, const Params* params) {
  if (fake_cuda().lost != kSuccess) return fake_cuda().lost;
  // Commands are a chain: each node waits for the last, at once or by an edge that follows.
  if (graph->loose || count > (graph->nodes.empty() ? 0U : 1U)) return kInvalidValue;
  if (count == 1 && before[0] != graph->nodes.back().get()) return kInvalidValue;
  graph->loose = count == 0 && !graph->nodes.empty();
  graph->nodes.push_back(std::make_unique<GraphNodeObject>(node_of(*params)));
  *node = graph->nodes.back().get();
  return kSuccess;
}
template <class Params>
Status set(GraphExec exec, GraphNode node, const Params* params) {
  if (fake_cuda().lost != kSuccess) return fake_cuda().lost;
  const auto place = exec->places.find(node);
  if (place == exec->places.end()) return kInvalidValue;
  GraphNodeObject changed = node_of(*params);
  if (changed.kind != exec->nodes[place->second].kind) return kInvalidValue;
  exec->nodes[place->second] = std::move(changed);
  return kSuccess;
}

void* at(Address address) {
  return reinterpret_cast<void*>(address);  // NOLINT
}

// --- the driver's functions, as far as they do more than say yes ---

Status error_name(Status status, const char** name) {
  *name = status == kOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
          : status == 100             ? "CUDA_ERROR_NO_DEVICE"
          : status == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                      : "CUDA_ERROR_UNKNOWN";
  return kSuccess;
}
Status error_string(Status status, const char** text) {
  *text = status == kOutOfMemory ? "out of memory" : "something happened";
  return kSuccess;
}
Status device_attribute(int* value, int attribute, DeviceNumber) {
  *value = attribute == kAttributeCapabilityMajor   ? fake_cuda().major
           : attribute == kAttributeCapabilityMinor ? fake_cuda().minor
                                                    : 132;
  return kSuccess;
}
Status module_function(Function* function, Module, const char* name) {
  FakeCuda& fake = fake_cuda();
  if (fake.missing_kernel == name) return 500;
  for (const KernelFunction& kernel : kernel_functions()) {
    if (std::string(name) != kernel.name) continue;
    fake.functions.push_back(std::make_unique<FunctionObject>(FunctionObject{name, kernel.args}));
    *function = fake.functions.back().get();
    return kSuccess;
  }
  return 500;
}
Status allocate(Address* address, std::size_t bytes) {
  FakeCuda& fake = fake_cuda();
  if (fake.lost != kSuccess) return fake.lost;
  if (bytes > fake.memory - fake.used) return kOutOfMemory;
  *address = reinterpret_cast<Address>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  fake.allocations.emplace(*address, bytes);
  fake.used += bytes;
  return kSuccess;
}
Status free_memory(Address address) {
  FakeCuda& fake = fake_cuda();
  const auto found = fake.allocations.find(address);
  if (found == fake.allocations.end()) return kInvalidValue;
  fake.drain();
  fake.used -= found->second;
  fake.allocations.erase(found);
  std::free(at(address));  // NOLINT
  return fake.lost;
}
Status allocate_host(void** memory, std::size_t bytes, unsigned) {
  if (fake_cuda().lost != kSuccess) return fake_cuda().lost;
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  fake_cuda().hosts.insert(*memory);
  return kSuccess;
}
Status free_host(void* memory) {
  if (fake_cuda().hosts.erase(memory) == 0) return kInvalidValue;
  std::free(memory);  // NOLINT
  return fake_cuda().lost;
}
Status wait(StreamObject& stream, std::uint64_t until) {
  fake_cuda().drain(stream, until);
  if (fake_cuda().lose_at_wait) fake_cuda().lost = kIllegalAddress;
  return fake_cuda().lost;
}
Status issue(Stream stream, std::function<void()> what) {
  if (fake_cuda().lost != kSuccess) return fake_cuda().lost;
  stream->queue.push_back(std::move(what));
  ++stream->issued;
  return kSuccess;
}
Status launch(Function function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
              unsigned, Stream stream, void** params, void**) {
  if (fake_cuda().launch_status != kSuccess) return fake_cuda().launch_status;
  const KernelNode node{function, x, y, z, bx, by, bz, 0, params, nullptr, nullptr, nullptr};
  return issue(stream, [node = node_of(node)] { fake_cuda().run(node); });
}
Status event_create(Event* event, unsigned) {
  if (fake_cuda().lost != kSuccess) return fake_cuda().lost;
  *event = new EventObject;  // NOLINT
  fake_cuda().events.insert(*event);
  return kSuccess;
}
Status event_record(Event event, Stream stream) {
  *event = {stream, stream->issued};
  return fake_cuda().lost;
}
Status stream_after(Stream stream, Event event, unsigned) {
  // The event as it is now: recording it again changes nothing for who waits already.
  return issue(stream, [then = *event] {
    if (then.stream != nullptr) fake_cuda().drain(*then.stream, then.issued);
  });
}
Status event_destroy(Event event) {
  fake_cuda().events.erase(event);
  delete event;  // NOLINT
  return kSuccess;
}
Status graph_create(Graph* graph, unsigned) {
  if (fake_cuda().lost != kSuccess) return fake_cuda().lost;
  *graph = new GraphObject;  // NOLINT
  fake_cuda().graphs.insert(*graph);
  return kSuccess;
}
Status graph_destroy(Graph graph) {
  fake_cuda().graphs.erase(graph);
  delete graph;  // NOLINT
  return kSuccess;
}
Status graph_add_edges(Graph graph, const GraphNode* from, const GraphNode* to, const GraphEdge* edge,
                       std::size_t count) {
  const auto& nodes = graph->nodes;
  if (!graph->loose || count != 1 || nodes.size() < 2) return kInvalidValue;
  if (from[0] != nodes[nodes.size() - 2].get() || to[0] != nodes.back().get()) return kInvalidValue;
  // The driver allows edges of this type between kernels alone.
  constexpr auto kKernel = GraphNodeObject::Kind::kKernel;
  if (edge->type != 1 || edge->from_port != 1 || from[0]->kind != kKernel || to[0]->kind != kKernel) {
    return kInvalidValue;
  }
  graph->loose = false;
  ++fake_cuda().early_edges;
  return kSuccess;
}

Status graph_instantiate(GraphExec* exec, Graph graph, unsigned long long) {
  if (fake_cuda().lost != kSuccess) return fake_cuda().lost;
  if (graph->loose) return kInvalidValue;
  *exec = new GraphExecObject;  // NOLINT
  for (const auto& node : graph->nodes) {
    (*exec)->places.emplace(node.get(), (*exec)->nodes.size());
    (*exec)->nodes.push_back(*node);
  }
  fake_cuda().execs.insert(*exec);
  return kSuccess;
}
Status exec_destroy(GraphExec exec) {
  fake_cuda().execs.erase(exec);
  delete exec;  // NOLINT
  return kSuccess;
}

}  // namespace

FakeCuda& fake_cuda() {
  if (!current) reset_fake_cuda();
  return *current;
}
void reset_fake_cuda() {
  current = std::make_unique<FakeCuda>();
}

FakeCuda::~FakeCuda() {
  for (StreamObject* stream : streams) delete stream;                       // NOLINT
  for (const auto& [address, bytes] : allocations) std::free(at(address));  // NOLINT
}

void FakeCuda::drain() {
  for (StreamObject* stream : streams) drain(*stream, stream->issued);
}

void FakeCuda::drain(StreamObject& stream, std::uint64_t until) {
  while (stream.done < until) {
    const auto first = std::move(stream.queue.front());
    stream.queue.pop_front();
    ++stream.done;
    if (lost == kSuccess) first();
  }
}

void FakeCuda::run(const GraphNodeObject& node) {
  if (node.kind == GraphNodeObject::Kind::kCopy) {
    const CopyNode& copy = node.copy;
    const void* from = copy.from_type == kMemoryHost ? copy.from_host : at(copy.from_device);
    std::memmove(copy.to_type == kMemoryHost ? copy.to_host : at(copy.to_device), from, copy.width);
  } else if (node.kind == GraphNodeObject::Kind::kFill) {
    std::memset(at(node.fill.to), static_cast<int>(node.fill.value), node.fill.width);
  } else if (node.function->name == "sluice_copy") {
    CopyArgs args;
    std::memcpy(&args, node.args.data(), sizeof args);
    std::memmove(at(args.to), at(args.from), args.bytes);
  } else if (node.function->name == "sluice_fill") {
    FillArgs args;
    std::memcpy(&args, node.args.data(), sizeof args);
    std::memset(at(args.to), static_cast<int>(args.value), args.bytes);
  } else {
    runs.push_back({node.function->name, node.args, node.grid_x});
  }
}

Driver FakeCuda::driver() {
  Driver d;
  d.init = [](unsigned) { return fake_cuda().init; };
  d.driver_version = [](int* number) {
    *number = fake_cuda().version;
    return kSuccess;
  };
  d.error_name = error_name;
  d.error_string = error_string;
  d.device_count = [](int* count) {
    *count = fake_cuda().devices;
    return kSuccess;
  };
  d.device_get = [](DeviceNumber* device, int number) {
    *device = number;
    return kSuccess;
  };
  d.device_name = [](char* name, int bytes, DeviceNumber number) {
    std::strncpy(name, number == 0 ? "Fake GPU" : "Other GPU", static_cast<std::size_t>(bytes));
    return kSuccess;
  };
  d.device_attribute = device_attribute;
  d.device_memory = [](std::size_t* bytes, DeviceNumber) {
    *bytes = fake_cuda().memory;
    return kSuccess;
  };
  d.context_retain = [](Context* context, DeviceNumber) {
    *context = reinterpret_cast<Context>(&fake_cuda());
    return kSuccess;
  };
  d.context_reset = [](DeviceNumber) { return kSuccess; };
  d.context_set = [](Context) { return kSuccess; };
  d.module_load = [](Module*, const void*) { return kSuccess; };
  d.module_unload = [](Module) { return kSuccess; };
  d.module_function = module_function;
  d.function_set = [](Function, int, int) { return kSuccess; };
  d.memory_info = [](std::size_t* left, std::size_t* all) {
    *left = fake_cuda().memory - fake_cuda().used;
    *all = fake_cuda().memory;
    return kSuccess;
  };
  d.allocate = allocate;
  d.free = free_memory;
  d.allocate_host = allocate_host;
  d.free_host = free_host;
  d.copy = [](Address to, Address from, std::size_t bytes, Stream stream) {
    return issue(stream, [=] { std::memmove(at(to), at(from), bytes); });
  };
  d.fill = [](Address to, unsigned char value, std::size_t bytes, Stream stream) {
    return issue(stream, [=] { std::memset(at(to), value, bytes); });
  };
  d.stream_create = [](Stream* made, unsigned) {
    *made = new StreamObject;  // NOLINT
    fake_cuda().streams.insert(*made);
    return kSuccess;
  };
  d.stream_destroy = [](Stream stream) {
    fake_cuda().drain(*stream, stream->issued);
    fake_cuda().streams.erase(stream);
    delete stream;  // NOLINT
    return kSuccess;
  };
  d.stream_wait = [](Stream stream) { return wait(*stream, stream->issued); };
  d.stream_after = stream_after;
  d.event_create = event_create;
  d.event_destroy = event_destroy;
  d.event_record = event_record;
  d.event_wait = [](Event event) {
    return event->stream == nullptr ? fake_cuda().lost : wait(*event->stream, event->issued);
  };
  d.launch = launch;
  d.graph_create = graph_create;
  d.graph_destroy = graph_destroy;
  d.graph_add_kernel = [](GraphNode* n, Graph g, const GraphNode* b, std::size_t c, const KernelNode* p) {
    return add(n, g, b, c, p);
  };
  d.graph_add_copy = [](GraphNode* n, Graph g, const GraphNode* b, std::size_t c, const CopyNode* p,
                        Context) { return add(n, g, b, c, p); };
  d.graph_add_fill = [](GraphNode* n, Graph g, const GraphNode* b, std::size_t c, const FillNode* p,
                        Context) { return add(n, g, b, c, p); };
  d.graph_add_edges = graph_add_edges;
  d.graph_instantiate = graph_instantiate;
  d.graph_launch = [](GraphExec exec, Stream stream) {
    // A launch keeps what the nodes were given before it.
    return issue(stream, [nodes = exec->nodes] {
      for (const auto& node : nodes) fake_cuda().run(node);
    });
  };
  d.exec_destroy = exec_destroy;
  d.exec_set_kernel = [](GraphExec e, GraphNode n, const KernelNode* p) { return set(e, n, p); };
  d.exec_set_copy = [](GraphExec e, GraphNode n, const CopyNode* p, Context) { return set(e, n, p); };
  d.exec_set_fill = [](GraphExec e, GraphNode n, const FillNode* p, Context) { return set(e, n, p); };
  return d;
}

}  // namespace sluice::gpu::cuda
