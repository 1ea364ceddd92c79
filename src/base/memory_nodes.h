// Machines whose memory is in several places (NUMA nodes), each near to some of the cores.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace sluice {

/// "0-2,5" as Linux writes lists of nodes; nothing when it is none.
std::optional<std::vector<int>> parse_node_list(std::string_view text);

/// The nodes that have memory; one where the system does not tell.
const std::vector<int>& memory_nodes();

/// Has the pages of `memory` that nobody touched yet come from `nodes` in turn, instead of from the node of
/// the first thread that touches them. Starts at a page. False where the system refuses.
bool interleave(std::span<std::byte> memory, const std::vector<int>& nodes);

/// What all threads read, weights above all, is taken from all nodes at once: whichever cores they run on, a
/// step then has the bandwidth of the whole machine. Nothing is done on a machine of one node, or where the
/// process was started under a policy of its own (numactl).
void spread_over_nodes(std::span<std::byte> memory);

}  // namespace sluice
