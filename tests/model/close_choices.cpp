#include "model/close_choices.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <stdexcept>

namespace sluice::test {
namespace {

using backend::Dev;

float gap_of(std::span<const float> values, std::int64_t k) {
  if (std::ssize(values) <= k) return INFINITY;
  std::vector<float> sorted(values.begin(), values.end());
  std::nth_element(sorted.begin(), sorted.begin() + k, sorted.end(), std::greater<>());
  return *std::min_element(sorted.begin(), sorted.begin() + k) - sorted[static_cast<std::size_t>(k)];
}

template <class T>
std::vector<T> rows_of(const T* first, std::int64_t rows, std::int64_t stride) {
  return {first, first + rows * stride};
}

template <class T>
std::vector<T> fetch(backend::Backend& backend, Dev<const T> from, std::int64_t count) {
  std::vector<T> to(static_cast<std::size_t>(count));
  backend.download(std::as_writable_bytes(std::span(to)),
                   Dev(reinterpret_cast<const std::byte*>(from.address())));
  return to;
}

template <class T>
void store(backend::Backend& backend, Dev<T> to, std::span<const T> from) {
  backend.upload(Dev(reinterpret_cast<std::byte*>(to.address())), std::as_bytes(from));
}

/// The router's weights of these experts.
std::vector<float> weights_of(std::span<const float> logits, std::span<const std::uint32_t> chosen,
                              bool renormalise) {
  double all = 0;
  for (const float logit : logits) all += std::exp(double{logit});
  double sum = 0;
  for (const std::uint32_t expert : chosen) sum += std::exp(double{logits[expert]});
  std::vector<float> weights;
  for (const std::uint32_t expert : chosen) {
    weights.push_back(static_cast<float>(std::exp(double{logits[expert]}) / (renormalise ? sum : all)));
  }
  return weights;
}

}  // namespace

void ChoiceRecorder::router_topk(Dev<const float> logits, std::int64_t rows, std::int64_t n, std::int64_t k,
                                 bool renormalise, Dev<std::uint32_t> index, Dev<float> weight) {
  CpuBackend::router_topk(logits, rows, n, k, renormalise, index, weight);
  Choices made;
  for (std::int64_t r = 0; r < rows; ++r) {
    made.gap.push_back(gap_of({logits.address() + r * n, static_cast<std::size_t>(n)}, k));
  }
  made.chosen = rows_of(index.address(), rows, k);
  choices_.push_back(std::move(made));
}

void ChoiceRecorder::index_select(backend::IndexShape shape, Dev<const float> scores,
                                  std::int64_t score_stride, Dev<const std::uint32_t> visible,
                                  std::int64_t rows, Dev<std::uint32_t> tokens, std::int64_t token_stride,
                                  Dev<std::uint32_t> count, Dev<std::uint8_t> dense, Dev<std::uint32_t> mask,
                                  std::int64_t mask_words) {
  CpuBackend::index_select(shape, scores, score_stride, visible, rows, tokens, token_stride, count, dense,
                           mask, mask_words);
  Choices made;
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto complete = static_cast<std::size_t>(visible.address()[r] / shape.ratio);
    made.gap.push_back(gap_of({scores.address() + r * score_stride, complete}, shape.block_budget));
  }
  made.chosen = rows_of(tokens.address(), rows, token_stride);
  made.count = rows_of(count.address(), rows, 1);
  choices_.push_back(std::move(made));
}

const Choices& GuidedGpu::next(std::int64_t rows) {
  if (choices_ == nullptr || next_ >= choices_->size() || std::ssize((*choices_)[next_].gap) != rows) {
    throw std::logic_error("the calls are not those that were recorded");
  }
  return (*choices_)[next_++];
}

void GuidedGpu::router_topk(Dev<const float> logits, std::int64_t rows, std::int64_t n, std::int64_t k,
                            bool renormalise, Dev<std::uint32_t> index, Dev<float> weight) {
  GpuBackend::router_topk(logits, rows, n, k, renormalise, index, weight);
  const Choices& reference = next(rows);
  const auto own = fetch(*this, Dev<const std::uint32_t>(index.address()), rows * k);
  for (std::int64_t r = 0; r < rows; ++r) {
    if (reference.gap[static_cast<std::size_t>(r)] >= nearly_tied_) continue;
    const auto chosen =
        std::span(reference.chosen).subspan(static_cast<std::size_t>(r * k), static_cast<std::size_t>(k));
    if (std::is_permutation(chosen.begin(), chosen.end(), own.begin() + r * k)) continue;
    ++changed_;
    const auto row = fetch(*this, logits + r * n, n);
    store(*this, index + r * k, chosen);
    store<float>(*this, weight + r * k, weights_of(row, chosen, renormalise));
  }
}

void GuidedGpu::index_select(backend::IndexShape shape, Dev<const float> scores, std::int64_t score_stride,
                             Dev<const std::uint32_t> visible, std::int64_t rows, Dev<std::uint32_t> tokens,
                             std::int64_t token_stride, Dev<std::uint32_t> count, Dev<std::uint8_t> dense,
                             Dev<std::uint32_t> mask, std::int64_t mask_words) {
  GpuBackend::index_select(shape, scores, score_stride, visible, rows, tokens, token_stride, count, dense,
                           mask, mask_words);
  const Choices& reference = next(rows);
  const auto own = fetch(*this, Dev<const std::uint32_t>(tokens.address()), rows * token_stride);
  for (std::int64_t r = 0; r < rows; ++r) {
    if (reference.gap[static_cast<std::size_t>(r)] >= nearly_tied_) continue;
    const auto chosen =
        std::span(reference.chosen)
            .subspan(static_cast<std::size_t>(r * token_stride), static_cast<std::size_t>(token_stride));
    if (std::equal(chosen.begin(), chosen.end(), own.begin() + r * token_stride)) continue;
    ++changed_;
    store(*this, tokens + r * token_stride, chosen);
    store(*this, count + r, std::span(reference.count).subspan(static_cast<std::size_t>(r), 1));
  }
}

}  // namespace sluice::test
