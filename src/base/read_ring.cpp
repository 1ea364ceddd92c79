#include "base/read_ring.h"

#include <cerrno>
#include <cstring>
#include <limits>

#ifdef SLUICE_HAVE_URING
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>
#endif

namespace sluice {

#ifdef SLUICE_HAVE_URING
namespace {

constexpr std::uint64_t kWakeTag = std::numeric_limits<std::uint64_t>::max();
constexpr int kMostBusy = 1000;  // refusals for want of the kernel's own memory

class Uring final : public ReadRing {
 public:
  static Result<std::unique_ptr<ReadRing>> open(std::size_t depth) {
    std::unique_ptr<Uring> ring(new Uring(depth));
    // One entry more: the read that waits for wake().
    const int error = io_uring_queue_init(static_cast<unsigned>(depth + 1), &ring->ring_, 0);
    if (error < 0) return make_error(ErrorCode::kUnsupported, "io_uring: {}", std::strerror(-error));
    ring->open_ = true;
    ring->event_ = eventfd(0, EFD_CLOEXEC);
    if (ring->event_ < 0) return make_error(ErrorCode::kUnsupported, "eventfd: {}", std::strerror(errno));
    return std::unique_ptr<ReadRing>(std::move(ring));
  }
  ~Uring() override {
    if (open_) io_uring_queue_exit(&ring_);
    if (event_ >= 0) close(event_);
  }
  Uring(const Uring&) = delete;
  Uring& operator=(const Uring&) = delete;

  void read(int fd, std::uint64_t offset, std::span<std::byte> to, std::uint64_t tag) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    const int buffer = buffer_of(to);
    if (buffer >= 0) {
      io_uring_prep_read_fixed(entry, fd, to.data(), static_cast<unsigned>(to.size()), offset, buffer);
    } else {
      io_uring_prep_read(entry, fd, to.data(), static_cast<unsigned>(to.size()), offset);
    }
    io_uring_sqe_set_data64(entry, tag);
  }

  void submit() override { io_uring_submit(&ring_); }

  Result<void> wait(std::vector<Ended>& ended) override {
    if (!waking_) {
      io_uring_sqe* entry = io_uring_get_sqe(&ring_);
      io_uring_prep_read(entry, event_, &wakes_, sizeof wakes_, 0);
      io_uring_sqe_set_data64(entry, kWakeTag);
      waking_ = true;
    }
    int result = -EINTR;
    for (int busy = 0; result == -EINTR || ((result == -EAGAIN || result == -EBUSY) && busy < kMostBusy);) {
      if (result != -EINTR) ++busy;
      result = io_uring_submit_and_wait(&ring_, 1);
    }
    if (result < 0) return make_error(ErrorCode::kIo, "io_uring: {}", std::strerror(-result));
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(&ring_, &entry) == 0) {
      const std::uint64_t tag = io_uring_cqe_get_data64(entry);
      if (tag == kWakeTag) {
        waking_ = false;
      } else {
        ended.push_back({tag, entry->res});
      }
      io_uring_cqe_seen(&ring_, entry);
    }
    return {};
  }

  void wake() override {
    const std::uint64_t one = 1;
    // It can only fail when the counter is full, which wakes too.
    [[maybe_unused]] const auto written = write(event_, &one, sizeof one);
  }

  [[nodiscard]] std::size_t depth() const override { return depth_; }

  bool register_memory(std::span<std::byte> memory, std::size_t unit) override {
    release_memory();
    // A registered buffer holds at most 1 GiB.
    part_ = (std::size_t{1} << 30) / unit * unit;
    if (part_ == 0) return false;
    std::vector<iovec> parts;
    for (std::size_t at = 0; at < memory.size(); at += part_) {
      parts.push_back({memory.data() + at, std::min(part_, memory.size() - at)});
    }
    if (io_uring_register_buffers(&ring_, parts.data(), static_cast<unsigned>(parts.size())) < 0)
      return false;
    registered_ = memory;
    return true;
  }
  void release_memory() override {
    if (!registered_.empty()) io_uring_unregister_buffers(&ring_);
    registered_ = {};
  }

 private:
  explicit Uring(std::size_t depth) : depth_(depth) {}
  [[nodiscard]] int buffer_of(std::span<const std::byte> to) const {
    if (to.data() < registered_.data() || to.data() >= registered_.data() + registered_.size()) return -1;
    return static_cast<int>(static_cast<std::size_t>(to.data() - registered_.data()) / part_);
  }

  std::size_t depth_;
  io_uring ring_{};
  bool open_ = false;
  int event_ = -1;
  std::uint64_t wakes_ = 0;
  bool waking_ = false;  // the read that waits for wake() is under way
  std::span<std::byte> registered_;
  std::size_t part_ = 1;
};

}  // namespace

Result<std::unique_ptr<ReadRing>> open_read_ring(std::size_t depth) {
  return Uring::open(depth);
}

#else

Result<std::unique_ptr<ReadRing>> open_read_ring(std::size_t) {
  return make_error(ErrorCode::kUnsupported, "io_uring: not on this system, or not built in");
}

#endif

}  // namespace sluice
