#include "experts/source_slots.h"

namespace sluice::experts {

SlotSource slots_of(const store::WeightSource& source, std::vector<std::size_t> tiers, std::int64_t records) {
  const auto tier_of = [tiers = std::move(tiers), records](std::int64_t id) {
    return tiers[static_cast<std::size_t>(id / records)];
  };
  SlotSource slots;
  slots.read = [&source, tier_of, records](std::int64_t id, std::span<std::byte> slot) {
    return source.read_slot(tier_of(id), id % records, slot);
  };
  slots.place = [&source, tier_of, records](std::int64_t id) -> std::optional<SlotPlace> {
    const auto place = source.slot_place(tier_of(id), id % records);
    if (!place) return std::nullopt;
    return SlotPlace{place->fd, place->offset};
  };
  slots.check = [&source, tier_of, records](std::int64_t id, std::span<const std::byte> slot) {
    return source.check_slot(tier_of(id), id % records, slot);
  };
  return slots;
}

}  // namespace sluice::experts
