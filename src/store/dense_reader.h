// Reads dense tensors with several threads, ahead of whoever takes them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "store/source.h"

namespace sluice::store {

/// Loading is bound by copies from the page cache and checksums of them: by cores. Threads read tensors in
/// the order of `names`; at most `kMostAhead` bytes wait for take() at a time. A source must allow reads from
/// several threads.
class DenseReader {
 public:
  static constexpr std::uint64_t kMostAhead = std::uint64_t{512} << 20;

  /// `names`: what will be taken, about in the order in which it will be. `source` must outlive this.
  DenseReader(const WeightSource& source, std::vector<std::string> names, int threads);
  /// Waits for the reads under way; those that have not begun never will.
  ~DenseReader();
  DenseReader(const DenseReader&) = delete;
  DenseReader& operator=(const DenseReader&) = delete;

  /// What source.read_dense(name) gives. Waits for a read that has begun, and reads here what no thread has
  /// come to, or what is not among the names.
  Result<DenseTensor> take(std::string_view name);

 private:
  void work() noexcept;

  struct Tensor {
    /// kOurs: a thread of ours reads it or has; kTheirs: it was taken, or is left to take().
    enum class Of { kNobody, kOurs, kTheirs } of = Of::kNobody;
    std::optional<Result<DenseTensor>> read;  // until it is taken
  };

  const WeightSource& source_;
  std::vector<std::string> names_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::map<std::string, Tensor, std::less<>> tensors_;
  std::size_t next_ = 0;  // of names_
  std::uint64_t ahead_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sluice::store
