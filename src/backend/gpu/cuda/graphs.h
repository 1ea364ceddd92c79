// Lists of commands that come again and again, kept as CUDA graphs.
//
// A step of decoding issues the same kernels as the one before, with a few other arguments. A list whose
// shape was seen before becomes a graph; when the shape comes again, the nodes whose values differ are
// patched and the graph is launched as a whole.
//
// One shape may stand for many lists (the same part of every layer, with other weights), and patching all of
// a graph's nodes gains little. So a shape has several graphs, and the one that differs least is taken: as a
// rule the one that followed the last graph the time before.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "backend/gpu/cuda/commands.h"
#include "backend/gpu/cuda/counters.h"
#include "backend/gpu/cuda/staging.h"

namespace sluice::gpu::cuda {

class GraphCache {
 public:
  static constexpr std::size_t kLeastCommands = 4;                   // fewer are as fast one by one
  static constexpr std::size_t kMostUploads = std::size_t{2} << 20;  // bytes that a graph stages by itself
  static constexpr std::size_t kGraphs = 256;
  static constexpr std::size_t kGraphsOfShape = 64;
  static constexpr std::size_t kNodes = 32768;  // of all graphs

  GraphCache(Machine& machine, Counters& counters);
  ~GraphCache();
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  /// Launches the list as a graph. False: nothing was done, and it is to be run command by command (a shape
  /// not seen before, a list too short, or a failure, which the machine has).
  bool run(const CommandList& list);
  [[nodiscard]] std::size_t size() const { return entries_.size(); }

 private:
  struct Entry;
  struct Shape {
    std::uint32_t seen = 0;
    std::vector<Entry*> graphs;
  };

  /// Fills different_ with the commands whose values are not the graph's. False: it is no graph of this list,
  /// or there are more than `most`.
  bool compare(const Entry& entry, const CommandList& list, std::size_t most);
  Entry* choose(const CommandList& list);
  Entry* make(const CommandList& list, Shape& shape);
  bool add_node(Entry& entry, const CommandList& list, std::size_t index);
  bool patch(Entry& entry, const CommandList& list);
  bool stage(Entry& entry, const CommandList& list);
  void evict();

  Machine& machine_;
  Counters& counters_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::unordered_map<std::uint64_t, Shape> shapes_;
  Entry* last_ = nullptr;
  std::uint64_t clock_ = 0;
  std::size_t nodes_ = 0;
  std::vector<std::uint32_t> different_, nearest_;  // kept for their memory
};

}  // namespace sluice::gpu::cuda
