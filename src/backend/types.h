// What operations work on: device addresses, weight matrices and expert records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "spec/formats.h"

namespace sluice::backend {

/// Address of elements of T in a backend's memory. Only a backend may look behind it: code above moves
/// data with Backend::upload and download. On the CPU it is an ordinary pointer.
template <class T>
class Dev {
 public:
  Dev() = default;
  explicit Dev(T* address) : address_(address) {}
  /// A writable address converts to a read-only one.
  template <class U>
  requires(std::is_convertible_v<U*, T*> && !std::is_same_v<U, T>) Dev(Dev<U> other)
      : address_(other.address()) {}  // NOLINT: implicit by design

  [[nodiscard]] T* address() const { return address_; }
  explicit operator bool() const { return address_ != nullptr; }
  Dev operator+(std::int64_t elements) const { return Dev(address_ + elements); }

 private:
  T* address_ = nullptr;
};

using spec::bits_of;
using spec::ExpertGeometry;
using spec::Format;
using spec::is_quantised;
using spec::RecordLayout;

/// A weight matrix [out][in], y = W x. Quantised formats have bf16 scales and biases [out][in / group].
struct Matrix {
  Format format = Format::kF32;
  std::int64_t out = 0;
  std::int64_t in = 0;
  int group = 64;                   // inputs a scale; a multiple of 32 that divides `in`
  Dev<const std::byte> data;        // [out][in * bits / 8], rows without gaps
  Dev<const std::uint16_t> scales;  // bf16
  Dev<const std::uint16_t> biases;  // bf16
  [[nodiscard]] std::int64_t row_bytes() const { return in * bits_of(format) / 8; }
};

/// The three matrices of one expert record.
struct RecordParts {
  Matrix gate, up, down;
};

inline RecordParts record_parts(const RecordLayout& layout, Dev<const std::byte> record) {
  const auto matrix = [&](int which, std::int64_t out, std::int64_t in) {
    Matrix m{layout.format, out, in, layout.geometry.group, record + layout.matrix_offset(which), {}, {}};
    if (is_quantised(layout.format)) {
      m.scales =
          Dev(reinterpret_cast<const std::uint16_t*>((record + layout.scales_offset(which)).address()));
      m.biases =
          Dev(reinterpret_cast<const std::uint16_t*>((record + layout.biases_offset(which)).address()));
    }
    return m;
  };
  const auto& g = layout.geometry;
  return {matrix(0, g.inter, g.hidden), matrix(1, g.inter, g.hidden), matrix(2, g.hidden, g.inter)};
}

/// One entry of an expert table: a record's address with its precision tag in the top four bits, so that
/// moving a record or changing its precision changes the table and nothing else.
struct ExpertEntry {
  std::uint64_t bits = 0;
  static ExpertEntry make(const std::byte* record, Format format) {
    return {reinterpret_cast<std::uint64_t>(record) | (static_cast<std::uint64_t>(format) << 60)};
  }
  [[nodiscard]] Format format() const { return static_cast<Format>(bits >> 60); }
  [[nodiscard]] Dev<const std::byte> record() const {
    return Dev(reinterpret_cast<const std::byte*>(bits & ((std::uint64_t{1} << 60) - 1)));
  }
};

/// The experts of one layer for one step: the union of what its rows chose, and which row needs which.
/// Pair p of entry u (begin[u] <= p < begin[u + 1]) says that row pair_row[p] chose entry u, and that its
/// output goes to slot pair_slot[p] of that row. A row's slots are its experts in ascending id, so the
/// sum over slots is the same whichever records arrived first.
struct ExpertBatch {
  ExpertGeometry geometry;
  std::int64_t rows = 0;
  std::int64_t slots = 0;              // outputs a row: experts per token
  Dev<const ExpertEntry> entries;      // [entry_count]
  Dev<const std::uint32_t> begin;      // [entry_count + 1]
  Dev<const std::uint32_t> pair_row;   // [pairs]
  Dev<const std::uint32_t> pair_slot;  // [pairs]
  std::uint32_t formats = ~0U;         // a bit (1 << Format) for each format that a record may have
};

/// Rotary tables (model.md 3.5): cos and sin of every position of a step.
struct Rope {
  std::int64_t dims = 0;  // rotated dims of a head, even; pairs (j, j + dims / 2)
  Dev<const float> cos;   // [rows][dims / 2]
  Dev<const float> sin;   // [rows][dims / 2]
};

/// A ring of past positions: position p of channel c lies at [p % span][c].
struct Ring {
  Dev<float> data;        // [span][channels]
  std::int64_t span = 0;  // at least the window, plus the rows a step may take back
};

}  // namespace sluice::backend
