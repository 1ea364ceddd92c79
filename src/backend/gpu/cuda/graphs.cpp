#include "backend/gpu/cuda/graphs.h"

#include <algorithm>

#include "backend/gpu/cuda/nodes.h"

namespace sluice::gpu::cuda {

constexpr std::size_t kShapes = 4096;  // remembered

struct GraphCache::Entry {
  explicit Entry(Machine& machine) : staging(machine) {}

  std::uint64_t shape = 0;
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  std::vector<GraphNode> nodes;
  // What the nodes hold now.
  std::vector<Command> commands;
  std::vector<std::byte> args;
  HostBlock staging;
  Event read = nullptr;  // behind the last launch, where there are uploads
  bool waiting = false;
  Entry* successor = nullptr;
  std::uint64_t used = 0;
};

GraphCache::GraphCache(Machine& machine, Counters& counters) : machine_(machine), counters_(counters) {}

GraphCache::~GraphCache() {
  while (!entries_.empty()) evict();
}

bool GraphCache::run(const CommandList& list) {
  if (list.size() < kLeastCommands || list.uploads().size() > kMostUploads) return false;
  Entry* entry = choose(list);
  if (entry == nullptr) {
    last_ = nullptr;
    return false;
  }
  if (!stage(*entry, list)) return false;
  const auto about = [&] { return fmt::format("a graph of {} commands", list.size()); };
  if (!machine_.check(machine_.driver->graph_launch(entry->exec, machine_.stream), "cuGraphLaunch", about)) {
    return false;
  }
  ++counters_.graph_launches;
  if (entry->read != nullptr) {
    if (!machine_.check(machine_.driver->event_record(entry->read, machine_.stream), "cuEventRecord", about))
      return false;
    entry->waiting = true;
  }
  if (last_ != nullptr) last_->successor = entry;
  last_ = entry;
  entry->used = ++clock_;
  return true;
}

/// The graph for a list, made or patched to hold its values; null where there is none yet, or on failure.
GraphCache::Entry* GraphCache::choose(const CommandList& list) {
  // More than half of the nodes patched is worth looking for another graph.
  const std::size_t few = list.size() / 2;
  if (last_ != nullptr && last_->successor != nullptr && compare(*last_->successor, list, few)) {
    Entry* entry = last_->successor;
    return patch(*entry, list) ? entry : nullptr;
  }
  if (shapes_.size() >= kShapes)
    std::erase_if(shapes_, [](const auto& s) { return s.second.graphs.empty(); });
  Shape& shape = shapes_[list.shape()];
  if (++shape.seen < 2) return nullptr;
  Entry* best = nullptr;
  std::size_t most = list.size();
  for (Entry* entry : shape.graphs) {
    if (!compare(*entry, list, most)) continue;
    best = entry;
    nearest_.swap(different_);
    if (nearest_.size() <= few) break;  // good enough
    most = nearest_.size() - 1;
  }
  if (best == nullptr || (nearest_.size() > few && shape.graphs.size() < kGraphsOfShape)) {
    return make(list, shape);
  }
  different_.swap(nearest_);
  return patch(*best, list) ? best : nullptr;
}

bool GraphCache::compare(const Entry& entry, const CommandList& list, std::size_t most) {
  const auto& commands = list.commands();
  if (entry.shape != list.shape() || entry.commands.size() != commands.size()) return false;
  different_.clear();
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const Command& now = commands[i];
    const Command& then = entry.commands[i];
    if (!now.same_node(then)) return false;
    if (now.same_values(then) &&
        (!now.is_kernel() || std::memcmp(list.args().data() + now.args, entry.args.data() + then.args,
                                         machine_.kernels[now.kernel].args) == 0)) {
      continue;
    }
    if (different_.size() == most) return false;
    different_.push_back(static_cast<std::uint32_t>(i));
  }
  return true;
}

GraphCache::Entry* GraphCache::make(const CommandList& list, Shape& shape) {
  while (!entries_.empty() && (entries_.size() >= kGraphs || nodes_ + list.size() > kNodes)) evict();
  const Driver& driver = *machine_.driver;
  auto made = std::make_unique<Entry>(machine_);
  Entry& entry = *made;
  // Without its staging memory the list is run as it was the first time; that is no failure.
  if (!list.uploads().empty() && !entry.staging.allocate(list.uploads().size())) return nullptr;
  entries_.push_back(std::move(made));
  shape.graphs.push_back(&entry);
  nodes_ += list.size();
  entry.shape = list.shape();
  entry.commands = list.commands();
  entry.args = list.args();
  const auto about = [&] { return fmt::format("a graph of {} commands", list.size()); };
  if (!list.uploads().empty() &&
      !machine_.check(driver.event_create(&entry.read, kEventDisableTiming), "cuEventCreate", about)) {
    return nullptr;
  }
  if (!machine_.check(driver.graph_create(&entry.graph, 0), "cuGraphCreate", about)) return nullptr;
  entry.nodes.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!add_node(entry, list, i)) return nullptr;
  }
  if (!machine_.check(driver.graph_instantiate(&entry.exec, entry.graph, 0), "cuGraphInstantiate", about)) {
    return nullptr;
  }
  ++counters_.graphs_made;
  return &entry;
}

// Each node waits for the one before: commands see each other's effects in order. Between two kernels the
// wait is the later one's own, so that its launch, and what it reads of weights, overlap with the end of the
// other. What a move has written may be weights: nothing starts before it has ended.
bool GraphCache::add_node(Entry& entry, const CommandList& list, std::size_t index) {
  const Driver& driver = *machine_.driver;
  const Command& command = list.commands()[index];
  const GraphNode* before = entry.nodes.empty() ? nullptr : &entry.nodes.back();
  const bool early = driver.graph_add_edges != nullptr && before != nullptr && command.is_kernel() &&
                     list.commands()[index - 1].computes();
  const std::size_t count = before == nullptr || early ? 0 : 1;
  const auto about = [&] { return describe(machine_, command); };
  GraphNode node = nullptr;
  bool added = false;
  if (command.is_kernel()) {
    KernelCall call(machine_, command, list.args().data() + command.args,
                    reinterpret_cast<std::uint64_t>(entry.staging.data()));
    const KernelNode params = call.node();
    added = machine_.check(driver.graph_add_kernel(&node, entry.graph, before, count, &params),
                           "cuGraphAddKernelNode", about);
    if (added && early) {
      added = machine_.check(driver.graph_add_edges(entry.graph, before, &node, &kEarlyEdge, 1),
                             "cuGraphAddDependencies", about);
    }
  } else if (command.kind == Command::Kind::kCopy) {
    const CopyNode params = copy_node(command);
    added =
        machine_.check(driver.graph_add_copy(&node, entry.graph, before, count, &params, machine_.context),
                       "cuGraphAddMemcpyNode", about);
  } else {
    const FillNode params = fill_node(command);
    added =
        machine_.check(driver.graph_add_fill(&node, entry.graph, before, count, &params, machine_.context),
                       "cuGraphAddMemsetNode", about);
  }
  if (added) entry.nodes.push_back(node);
  return added;
}

/// Brings the nodes of different_ up to date. Launches that are under way keep what they were given.
bool GraphCache::patch(Entry& entry, const CommandList& list) {
  const Driver& driver = *machine_.driver;
  for (const std::uint32_t i : different_) {
    const Command& command = list.commands()[i];
    const auto about = [&] { return describe(machine_, command); };
    bool done = false;
    if (command.is_kernel()) {
      KernelCall call(machine_, command, list.args().data() + command.args,
                      reinterpret_cast<std::uint64_t>(entry.staging.data()));
      const KernelNode params = call.node();
      done = machine_.check(driver.exec_set_kernel(entry.exec, entry.nodes[i], &params),
                            "cuGraphExecKernelNodeSetParams", about);
      std::memcpy(entry.args.data() + entry.commands[i].args, list.args().data() + command.args,
                  machine_.kernels[command.kernel].args);
    } else if (command.kind == Command::Kind::kCopy) {
      const CopyNode params = copy_node(command);
      done = machine_.check(driver.exec_set_copy(entry.exec, entry.nodes[i], &params, machine_.context),
                            "cuGraphExecMemcpyNodeSetParams", about);
    } else {
      const FillNode params = fill_node(command);
      done = machine_.check(driver.exec_set_fill(entry.exec, entry.nodes[i], &params, machine_.context),
                            "cuGraphExecMemsetNodeSetParams", about);
    }
    if (!done) return false;
    entry.commands[i] = command;
  }
  counters_.patched_nodes += different_.size();
  return true;
}

/// Uploads go to the graph's own memory, once its last launch has read what is there.
bool GraphCache::stage(Entry& entry, const CommandList& list) {
  if (list.uploads().empty()) return true;
  if (entry.waiting && !machine_.check(machine_.driver->event_wait(entry.read), "cuEventSynchronize",
                                       [] { return "for the uploads of a graph"; })) {
    return false;
  }
  entry.waiting = false;
  std::memcpy(entry.staging.data(), list.uploads().data(), list.uploads().size());
  return true;
}

/// Lets go of the graph that was used longest ago.
void GraphCache::evict() {
  const auto oldest = std::min_element(entries_.begin(), entries_.end(),
                                       [](const auto& a, const auto& b) { return a->used < b->used; });
  Entry* entry = oldest->get();
  const Driver& driver = *machine_.driver;
  if (entry->waiting) driver.event_wait(entry->read);
  if (entry->exec != nullptr) driver.exec_destroy(entry->exec);
  if (entry->graph != nullptr) driver.graph_destroy(entry->graph);
  if (entry->read != nullptr) driver.event_destroy(entry->read);
  const auto shape = shapes_.find(entry->shape);
  if (shape != shapes_.end()) std::erase(shape->second.graphs, entry);
  for (const auto& other : entries_) {
    if (other->successor == entry) other->successor = nullptr;
  }
  if (last_ == entry) last_ = nullptr;
  nodes_ -= entry->commands.size();
  entries_.erase(oldest);
}

}  // namespace sluice::gpu::cuda
