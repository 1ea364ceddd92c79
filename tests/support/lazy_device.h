// A device that does nothing before somebody waits for it, so that memory which is written again, or given
// back, too early shows: what runs later finds what lies there then.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/gpu/emulated/emulated_device.h"
#include "backend/gpu/gpu_backend.h"

namespace sluice::test {

class LazyDevice final : public gpu::Device {
 public:
  explicit LazyDevice(std::unique_ptr<gpu::Device> device) : device_(std::move(device)) {}

  [[nodiscard]] std::string_view name() const override { return "lazy"; }
  [[nodiscard]] std::uint32_t multiprocessors() const override { return device_->multiprocessors(); }
  [[nodiscard]] std::uint64_t memory_bytes() const override { return device_->memory_bytes(); }
  Result<std::uint64_t> allocate(std::size_t bytes) override { return device_->allocate(bytes); }
  void free(std::uint64_t address) override {
    synchronise();
    device_->free(address);
  }
  Result<std::byte*> allocate_host(std::size_t bytes) override { return device_->allocate_host(bytes); }
  void free_host(std::byte* address) override {
    synchronise();
    device_->free_host(address);
  }

  void upload(std::uint64_t to, std::span<const std::byte> from) override {
    issue(commands_,
          [this, to, data = std::vector<std::byte>(from.begin(), from.end())] { device_->upload(to, data); });
  }
  void download(std::span<std::byte> to, std::uint64_t from) override {
    run(commands_, commands_.issued);
    device_->download(to, from);
  }
  void copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) override {
    issue(commands_, [=, this] { device_->copy(to, from, bytes); });
  }
  void fill(std::uint64_t to, std::uint8_t value, std::size_t bytes) override {
    issue(commands_, [=, this] { device_->fill(to, value, bytes); });
  }
  void launch(gpu::Kernel kernel, gpu::Grid grid, std::span<const std::byte> args) override {
    issue(commands_, [this, kernel, grid, data = std::vector<std::byte>(args.begin(), args.end())] {
      device_->launch(kernel, grid, std::span<const std::byte>(data));
    });
  }
  void copy_beside(std::uint64_t to, std::uint64_t from, std::size_t bytes) override {
    issue(copies_, [=, this, before = commands_.issued] {
      run(commands_, before);
      device_->copy(to, from, bytes);
    });
  }
  void join_copies() override {
    issue(commands_, [this, before = copies_.issued] { run(copies_, before); });
  }
  void synchronise() override {
    run(commands_, commands_.issued);
    run(copies_, copies_.issued);
  }
  [[nodiscard]] Result<void> status() const override { return device_->status(); }

 private:
  struct Queue {
    std::deque<std::function<void()>> waiting;
    std::uint64_t issued = 0, done = 0;
  };
  static void issue(Queue& queue, std::function<void()> what) {
    queue.waiting.push_back(std::move(what));
    ++queue.issued;
  }
  static void run(Queue& queue, std::uint64_t until) {
    while (queue.done < until) {
      const auto first = std::move(queue.waiting.front());
      queue.waiting.pop_front();
      ++queue.done;
      first();
    }
  }

  std::unique_ptr<gpu::Device> device_;
  Queue commands_, copies_;
};

inline std::unique_ptr<backend::Backend> lazy_backend(int threads = 2) {
  auto device = gpu::open_emulated_device(threads);
  if (!device.ok()) return nullptr;
  return std::make_unique<backend::GpuBackend>("lazy",
                                               std::make_unique<LazyDevice>(std::move(device).value()));
}

}  // namespace sluice::test
