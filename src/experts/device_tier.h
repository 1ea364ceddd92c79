// Some expert records in a device's memory, before another provider that has all of them: the uppermost of
// three tiers (device, host, disk).
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "experts/expert_provider.h"
#include "spec/formats.h"

namespace sluice::experts {

/// A record that is not in a device slot is computed with where the host has it, over the bus, or copied into
/// a slot and computed with there; either way it crosses the bus once. Which of the two, and what goes for
/// it, is decided by the steps' wishes alone, never by the time that anything takes:
///
/// * An empty slot takes any record.
/// * Decoding: a record takes the place of the one that was wanted least recently, if it was wanted since
///   itself. What is wanted once in a long while, or by chance, is read in place and drives nothing out.
/// * Prefill: several rows read each record, so that it is always copied, in few slots: what came in with a
///   prefill goes first, the latest before the others, so that a long prompt leaves what decoding comes back
///   to, and finds some of its own records again.
///
/// A host's record is given back once the device is done with it, and so is a slot.
class DeviceTier final : public ExpertProvider {
 public:
  struct Options {
    spec::RecordLayout layout;  // the precision that slots are for; the host may give others, read in place
    std::int64_t layers = 0;
    std::int64_t experts = 0;  // a layer
    std::uint64_t bytes = 0;   // of device memory; 0: all is read in place
    bool in_place = true;      // false: what finds a slot is copied there, however rarely it is wanted
  };
  /// As many slots as `bytes` holds, at most one a record. The backend must outlive it, and read the host's
  /// records in place (Backend::allocate_host). Errors: no room for a slot; the device's memory.
  static Result<std::unique_ptr<DeviceTier>> create(const Options& options, backend::Backend& backend,
                                                    std::unique_ptr<ExpertProvider> host);
  /// Bytes from one slot to the next.
  static std::uint64_t slot_bytes(const spec::RecordLayout& layout);

  void record_to(Statistics* statistics) override;
  Result<std::unique_ptr<Visit>> visit(const Wanted& wanted) override;
  bool wants_prediction(std::int64_t layer, Use use) override { return host_->wants_prediction(layer, use); }
  void predict(std::int64_t layer, std::span<const std::uint32_t> ids, Use use) override;
  void end_step() override;
  void settle() override { host_->settle(); }
  [[nodiscard]] ExpertCounts counts() const override;
  /// Of the host's records.
  [[nodiscard]] std::uint64_t bytes() const override { return host_->bytes(); }
  [[nodiscard]] std::uint64_t device_bytes() const override { return slots_.size() * stride_; }
  [[nodiscard]] std::string_view reader() const override { return host_->reader(); }
  [[nodiscard]] std::size_t slots() const { return slots_.size(); }

 private:
  class TierVisit;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  using Order = std::list<std::uint32_t>;

  struct Slot {
    std::int64_t record = -1;
    bool held = false;   // by the visit: given to the caller, or about to be
    Order::iterator at;  // in order_, unless it is empty
  };

  DeviceTier(const Options& options, backend::Backend& backend, std::unique_ptr<ExpertProvider> host);
  [[nodiscard]] std::int64_t record(std::int64_t layer, std::uint32_t expert) const {
    return layer * options_.experts + expert;
  }
  [[nodiscard]] std::uint32_t slot_of(std::int64_t record) const {
    return slot_of_[static_cast<std::size_t>(record)];
  }
  [[nodiscard]] backend::Dev<std::byte> address(std::uint32_t slot) {
    return memory_->as<std::byte>(static_cast<std::int64_t>(slot * stride_));
  }
  [[nodiscard]] backend::ExpertEntry entry(std::uint32_t slot) {
    return backend::ExpertEntry::make(address(slot).address(), options_.layout.format);
  }
  /// Decoding or a prefill wanted what is in a slot.
  void touch(std::uint32_t slot, Use use);
  /// A slot for a record that is wanted and has none, now its own and held; kNone: it is not to have one.
  std::uint32_t admit(std::int64_t record, Use use);

  Options options_;
  backend::Backend& backend_;
  std::unique_ptr<ExpertProvider> host_;
  std::uint64_t stride_ = 0;
  std::unique_ptr<backend::Buffer> memory_;  // [slots][stride]
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> slot_of_;     // [records]
  std::vector<std::uint64_t> last_touch_;  // [records] the visit in which decoding wanted it last; 0: never
  std::vector<std::uint32_t> empty_;       // slots
  Order order_;                            // the other slots, the next to go first
  std::uint64_t visits_ = 0;
  ExpertCounts counts_;  // the device's part
};

}  // namespace sluice::experts
