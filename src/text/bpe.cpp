#include "text/bpe.h"

#include <bit>
#include <functional>
#include <queue>

namespace sluice::text {
namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

std::size_t slot_of(std::uint64_t key, std::size_t mask) {
  key *= 0x9E3779B97F4A7C15ULL;
  return static_cast<std::size_t>(key ^ (key >> 32)) & mask;
}

constexpr std::uint32_t kNone = 0xFFFFFFFFU;

struct Symbol {
  std::int32_t id = 0;  // negative once merged into its left neighbour
  std::uint32_t previous = kNone;
  std::uint32_t next = kNone;
};

}  // namespace

Bpe::Bpe(const std::array<std::int32_t, 256>& byte_ids, const std::vector<MergeRule>& merges)
    : byte_ids_(byte_ids), table_(std::bit_ceil(merges.size() * 2 + 2)) {
  const std::size_t mask = table_.size() - 1;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::uint64_t key = pair_key(merges[rank].left, merges[rank].right);
    std::size_t slot = slot_of(key, mask);
    while (table_[slot].pair != kEmpty && table_[slot].pair != key) slot = (slot + 1) & mask;
    table_[slot] = {key, static_cast<std::uint32_t>(rank), merges[rank].result};
  }
}

const Bpe::Entry* Bpe::find(std::int32_t left, std::int32_t right) const {
  const std::uint64_t key = pair_key(left, right);
  const std::size_t mask = table_.size() - 1;
  for (std::size_t slot = slot_of(key, mask); table_[slot].pair != kEmpty; slot = (slot + 1) & mask) {
    if (table_[slot].pair == key) return &table_[slot];
  }
  return nullptr;
}

void Bpe::encode(std::string_view piece, std::vector<std::int32_t>& out) const {
  const auto id_of_byte = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  if (piece.size() == 1) {
    out.push_back(id_of_byte(piece[0]));
    return;
  }
  std::vector<Symbol> symbols(piece.size());
  for (std::size_t i = 0; i < piece.size(); ++i) {
    const auto at = static_cast<std::uint32_t>(i);
    symbols[i] = {id_of_byte(piece[i]), i == 0 ? kNone : at - 1, i + 1 == piece.size() ? kNone : at + 1};
  }

  // Candidates as rank and position in one number. An entry is stale when the pair at its position no
  // longer has its rank; it is then dropped on the way out.
  std::vector<std::uint64_t> candidates;
  candidates.reserve(piece.size());
  const auto candidate = [](std::uint32_t rank, std::uint32_t at) {
    return (static_cast<std::uint64_t>(rank) << 32) | at;
  };
  for (std::uint32_t at = 0; at + 1 < symbols.size(); ++at) {
    if (const Entry* merge = find(symbols[at].id, symbols[at + 1].id)) {
      candidates.push_back(candidate(merge->rank, at));
    }
  }
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> queue(std::greater<>(),
                                                                                       std::move(candidates));
  const auto offer = [&](std::uint32_t at) {
    if (const Entry* merge = find(symbols[at].id, symbols[symbols[at].next].id)) {
      queue.push(candidate(merge->rank, at));
    }
  };
  while (!queue.empty()) {
    const auto rank = static_cast<std::uint32_t>(queue.top() >> 32);
    const auto at = static_cast<std::uint32_t>(queue.top());
    queue.pop();
    Symbol& left = symbols[at];
    if (left.id < 0 || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    const Entry* merge = find(left.id, right.id);
    if (merge == nullptr || merge->rank != rank) continue;
    left.id = merge->result;
    right.id = -1;
    left.next = right.next;
    if (left.next != kNone) {
      symbols[left.next].previous = at;
      offer(at);
    }
    if (left.previous != kNone) offer(left.previous);
  }
  for (std::uint32_t at = 0; at != kNone; at = symbols[at].next) out.push_back(symbols[at].id);
}

}  // namespace sluice::text
