#include "store/dense_reader.h"

#include <exception>
#include <new>
#include <utility>

namespace sluice::store {
namespace {

Result<DenseTensor> read(const WeightSource& source, std::string_view name) {
  try {
    return source.read_dense(name);
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kOutOfMemory, "{}: out of memory", name);
  }
}

}  // namespace

DenseReader::DenseReader(const WeightSource& source, std::vector<std::string> names, int threads)
    : source_(source), names_(std::move(names)) {
  for (const std::string& name : names_) tensors_.try_emplace(name);
  try {
    for (int t = 0; t < threads; ++t) threads_.emplace_back([this] { work(); });
  } catch (const std::exception&) {
    // The system has no more threads: take() reads what they would have.
  }
}

DenseReader::~DenseReader() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void DenseReader::work() noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || ahead_ < kMostAhead; });
    while (next_ < names_.size() && tensors_.find(names_[next_])->second.of != Tensor::Of::kNobody) ++next_;
    if (stop_ || next_ >= names_.size()) return;
    Tensor& tensor = tensors_.find(names_[next_])->second;
    tensor.of = Tensor::Of::kOurs;
    const std::string& name = names_[next_];
    lock.unlock();
    Result<DenseTensor> result = read(source_, name);
    lock.lock();
    if (result.ok()) ahead_ += result->buffer.size();
    tensor.read = std::move(result);
    changed_.notify_all();
  }
}

Result<DenseTensor> DenseReader::take(std::string_view name) {
  std::unique_lock lock(mutex_);
  const auto found = tensors_.find(name);
  if (found == tensors_.end() || found->second.of != Tensor::Of::kOurs) {
    if (found != tensors_.end()) found->second.of = Tensor::Of::kTheirs;
    lock.unlock();
    return read(source_, name);
  }
  Tensor& tensor = found->second;
  changed_.wait(lock, [&] { return tensor.read.has_value(); });
  Result<DenseTensor> result = std::move(*tensor.read);
  if (result.ok()) ahead_ -= result->buffer.size();
  tensor.of = Tensor::Of::kTheirs;
  tensor.read.reset();
  lock.unlock();
  changed_.notify_all();
  return result;
}

}  // namespace sluice::store
