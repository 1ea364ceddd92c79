#include "model/sequence_state.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/checksum.h"

namespace sluice::model {
namespace {

constexpr std::uint64_t kMagic = 0x31656c756c735153;  // serialised form, version 1

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 60;

template <class T>
Dev<std::byte> as_bytes(Dev<T> p) {
  return Dev(reinterpret_cast<std::byte*>(p.address()));
}

std::size_t float_bytes(std::int64_t count) {
  return static_cast<std::size_t>(count) * sizeof(float);
}

}  // namespace

Result<void> check_kv(const spec::ModelConfig& config, KvFormat kv) {
  if (kv == KvFormat::kF32 || config.head_dim % backend::kQ8Group == 0) return {};
  return make_error(ErrorCode::kUnsupported,
                    "keys and values in 8 bits: heads of {} numbers found, a multiple of {} needed",
                    config.head_dim, backend::kQ8Group);
}

Result<std::unique_ptr<SequenceState>> SequenceState::create(const spec::ModelConfig& config,
                                                             backend::Backend& backend,
                                                             const StateOptions& options) {
  if (options.step_rows < 1 || options.step_rows > 64) {
    return make_error(ErrorCode::kInvalidArgument, "steps of {} rows: needed 1 to 64", options.step_rows);
  }
  if (options.context < 1 || options.context > (std::int64_t{1} << 30)) {
    return make_error(ErrorCode::kInvalidArgument, "context of {} tokens: needed 1 to {}", options.context,
                      std::int64_t{1} << 30);
  }
  SLUICE_TRY(check_kv(config, options.kv));
  std::unique_ptr<SequenceState> state(new SequenceState(config, &backend, options));
  SLUICE_TRY(state->allocate(backend));
  return state;
}

// The one list of what a state holds: allocate() takes it from the backend, bytes() adds it up.
template <class Take>
Result<void> SequenceState::each(const Take& take) {
  const auto layers = static_cast<std::size_t>(config_.layer_count());
  const std::int64_t rows = options_.step_rows;
  const auto full_cache = [&](FullCache& cache) -> Result<void> {
    const std::int64_t numbers = options_.context * config_.kv_width();
    if (options_.kv == KvFormat::kQ8) {
      for (auto* codes : {&cache.q8.keys, &cache.q8.values}) SLUICE_TRY(take(*codes, numbers));
      for (auto* scales : {&cache.q8.key_scales, &cache.q8.value_scales})
        SLUICE_TRY(take(*scales, numbers / backend::kQ8Group));
    } else {
      for (auto* floats : {&cache.keys, &cache.values}) SLUICE_TRY(take(*floats, numbers));
    }
    if (!config_.indexer) return {};
    SLUICE_TRY(take(cache.index_raw, options_.context * config_.indexer->head_dim));
    return take(cache.index_blocks,
                (options_.context / config_.indexer->ratio + 1) * config_.indexer->head_dim);
  };
  full_.resize(layers);
  delta_.resize(layers);
  ple_.resize(layers);
  for (std::size_t n = 0; n < layers; ++n) {
    if (config_.layers[n] == spec::LayerKind::kFull) {
      SLUICE_TRY(full_cache(full_[n]));
    } else {
      auto& delta = delta_[n];
      const std::int64_t size =
          config_.linear_value_heads * config_.linear_key_dim * config_.linear_value_dim;
      SLUICE_TRY(take(delta.state[0], size));
      SLUICE_TRY(take(delta.state[1], size));
      delta.conv.span = config_.linear_conv_kernel - 1 + rows;
      SLUICE_TRY(take(delta.conv.data, delta.conv.span * config_.linear_conv_width()));
      SLUICE_TRY(take(delta.step_qkv, rows * config_.linear_conv_width()));
      SLUICE_TRY(take(delta.step_decay, rows * config_.linear_value_heads));
      SLUICE_TRY(take(delta.step_beta, rows * config_.linear_value_heads));
    }
    if (config_.is_ple_layer(static_cast<std::int64_t>(n))) {
      ple_[n].span = config_.ple->window() + rows;
      SLUICE_TRY(take(ple_[n].data, ple_[n].span * config_.wide()));
    }
  }
  if (options_.mtp) SLUICE_TRY(full_cache(mtp_));
  SLUICE_TRY(take(wide_, (rows + 2) * config_.wide()));
  std::size_t backup = 0;
  for (const Part& ring : rings()) backup += ring.bytes;
  return take(ring_backup_, static_cast<std::int64_t>(backup));
}

Result<void> SequenceState::allocate(backend::Backend& backend) {
  return each([&]<class T>(Dev<T>& out, std::int64_t count) -> Result<void> {
    SLUICE_ASSIGN(auto buffer, backend.allocate(static_cast<std::size_t>(count) * sizeof(T)));
    out = buffer->template as<T>();
    buffers_.push_back(std::move(buffer));
    return {};
  });
}

std::uint64_t SequenceState::bytes(const spec::ModelConfig& config, const StateOptions& options) {
  std::uint64_t bytes = static_cast<std::uint64_t>(options.context) * sizeof(std::int32_t);  // its tokens
  SequenceState none(config, nullptr, options);
  [[maybe_unused]] const auto added = none.each([&]<class T>(Dev<T>&, std::int64_t count) {
    // A hostile config asks for more than the number holds.
    bytes = std::min(bytes + static_cast<std::uint64_t>(count) * sizeof(T), kMostBytes);
    return Result<void>{};
  });
  assert(added.ok());
  return bytes;
}

SequenceState::Cost SequenceState::cost(const spec::ModelConfig& config, StateOptions options) {
  Cost cost;
  options.context = 0;
  cost.fixed = bytes(config, options);
  options.context = config.indexer ? config.indexer->ratio : 1;  // a whole block, which shares its key
  cost.per_token = (bytes(config, options) - cost.fixed) / static_cast<std::uint64_t>(options.context);
  return cost;
}

std::uint64_t SequenceState::allocated() const {
  std::uint64_t bytes = 0;
  for (const auto& buffer : buffers_) bytes += buffer->size();
  return bytes;
}

std::vector<SequenceState::Part> SequenceState::rings() const {
  std::vector<Part> parts;
  for (std::size_t n = 0; n < full_.size(); ++n) {
    if (delta_[n].conv.span > 0) {
      parts.push_back(
          {as_bytes(delta_[n].conv.data), float_bytes(delta_[n].conv.span * config_.linear_conv_width())});
    }
    if (ple_[n].span > 0)
      parts.push_back({as_bytes(ple_[n].data), float_bytes(ple_[n].span * config_.wide())});
  }
  return parts;
}

std::vector<SequenceState::Part> SequenceState::recurrent_parts() const {
  std::vector<Part> parts = rings();
  const std::int64_t size = config_.linear_value_heads * config_.linear_key_dim * config_.linear_value_dim;
  for (const auto& delta : delta_) {
    if (delta.conv.span > 0) parts.push_back({as_bytes(delta.state[current_]), float_bytes(size)});
  }
  parts.push_back({as_bytes(wide_), float_bytes(wide_width_)});
  return parts;
}

std::vector<SequenceState::Part> SequenceState::token_parts(std::int64_t length) const {
  std::vector<Part> parts;
  const auto add = [&](const FullCache& cache, std::int64_t rows) {
    const auto numbers = static_cast<std::size_t>(rows * config_.kv_width());
    if (options_.kv == KvFormat::kQ8) {
      const std::size_t scales = numbers / backend::kQ8Group * sizeof(std::uint16_t);
      parts.push_back({as_bytes(cache.q8.keys), numbers});
      parts.push_back({as_bytes(cache.q8.key_scales), scales});
      parts.push_back({as_bytes(cache.q8.values), numbers});
      parts.push_back({as_bytes(cache.q8.value_scales), scales});
    } else {
      parts.push_back({as_bytes(cache.keys), numbers * sizeof(float)});
      parts.push_back({as_bytes(cache.values), numbers * sizeof(float)});
    }
    if (!config_.indexer) return;
    parts.push_back({as_bytes(cache.index_raw), float_bytes(rows * config_.indexer->head_dim)});
    parts.push_back({as_bytes(cache.index_blocks),
                     float_bytes(rows / config_.indexer->ratio * config_.indexer->head_dim)});
  };
  for (std::size_t n = 0; n < full_.size(); ++n) {
    if (config_.layers[n] == spec::LayerKind::kFull) add(full_[n], length);
  }
  if (options_.mtp) add(mtp_, std::max<std::int64_t>(length - 1, 0));
  return parts;
}

Result<void> SequenceState::begin(std::span<const std::int32_t> tokens) {
  if (pending() != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a step of {} rows is pending: commit it or roll it back first", pending());
  }
  const auto rows = static_cast<std::int64_t>(tokens.size());
  drafted_ = 0;
  if (rows > options_.context - length_) {
    return make_error(ErrorCode::kLimit, "{} tokens after {}: the context holds {}; a larger --ctx is needed",
                      rows, length_, options_.context);
  }
  if (rows > options_.step_rows) {
    // A long step overwrites the rings; kept aside, it can still be rolled back as a whole.
    Dev<std::byte> to = ring_backup_;
    for (const Part& ring : rings()) {
      backend_->copy(to, ring.data, ring.bytes);
      to = to + static_cast<std::int64_t>(ring.bytes);
    }
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return {};
}

Result<void> SequenceState::commit(std::int64_t rows) {
  const std::int64_t all = pending();
  if (rows < 0 || rows > all || (rows < all && rows > 0 && all > options_.step_rows)) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "commit of {} rows of a step of {}: needed all, none, or a part of a step of at most {}", rows, all,
        options_.step_rows);
  }
  if (rows == 0) {
    rollback();
    return {};
  }
  if (rows < all) {
    const backend::DeltaShape shape{config_.linear_key_heads, config_.linear_value_heads,
                                    config_.linear_key_dim, config_.linear_value_dim};
    for (auto& delta : delta_) {
      if (delta.conv.span == 0) continue;
      backend_->delta_scan(shape, delta.step_qkv, delta.step_decay, delta.step_beta, rows,
                           delta.state[current_], delta.state[1 - current_], {});
    }
  }
  current_ = 1 - current_;
  const std::int64_t slot = all > options_.step_rows ? 1 : rows;
  backend_->copy(as_bytes(wide_slot(0)), as_bytes(wide_slot(slot)), float_bytes(wide_width_));
  length_ += rows;
  tokens_.resize(static_cast<std::size_t>(length_));
  return {};
}

void SequenceState::rollback() {
  drafted_ = 0;
  if (pending() > options_.step_rows) {
    Dev<const std::byte> from = ring_backup_;
    for (const Part& ring : rings()) {
      backend_->copy(ring.data, from, ring.bytes);
      from = from + static_cast<std::int64_t>(ring.bytes);
    }
  }
  tokens_.resize(static_cast<std::size_t>(length_));
}

void SequenceState::reset() {
  drafted_ = 0;
  tokens_.clear();
  length_ = 0;
  for (const Part& part : recurrent_parts()) backend_->zero(part.data, part.bytes);
}

void SequenceState::write_parts(const std::vector<Part>& parts, std::vector<std::byte>& to) {
  for (const Part& part : parts) {
    const std::size_t at = to.size();
    to.resize(at + part.bytes);
    backend_->download(std::span(to).subspan(at), part.data);
  }
}

void SequenceState::read_parts(const std::vector<Part>& parts, std::span<const std::byte>& from) {
  for (const Part& part : parts) {
    backend_->upload(part.data, from.first(part.bytes));
    from = from.subspan(part.bytes);
  }
}

Checkpoint SequenceState::checkpoint() {
  assert(pending() == 0);
  Checkpoint checkpoint{length_, tokens_, {}};
  write_parts(recurrent_parts(), checkpoint.recurrent);
  return checkpoint;
}

Result<void> SequenceState::restore(const Checkpoint& checkpoint) {
  const auto parts = recurrent_parts();
  std::size_t needed = 0;
  for (const Part& part : parts) needed += part.bytes;
  if (checkpoint.recurrent.size() != needed) {
    return make_error(ErrorCode::kInvalidArgument, "checkpoint of {} bytes: this sequence's take {}",
                      checkpoint.recurrent.size(), needed);
  }
  const auto size = checkpoint.tokens.size();
  if (checkpoint.length != static_cast<std::int64_t>(size) || checkpoint.length > length_ ||
      !std::equal(checkpoint.tokens.begin(), checkpoint.tokens.end(), tokens_.begin())) {
    return make_error(ErrorCode::kInvalidArgument,
                      "checkpoint of {} tokens: not a prefix of this sequence's {} tokens", checkpoint.length,
                      length_);
  }
  rollback();
  std::span<const std::byte> from = checkpoint.recurrent;
  read_parts(parts, from);
  length_ = checkpoint.length;
  tokens_.resize(size);
  return {};
}

// Two states of one geometry have parts of equal sizes and meaning.
std::uint64_t SequenceState::geometry() const {
  std::vector<std::int64_t> sizes{config_.vocab,
                                  config_.hidden,
                                  config_.streams,
                                  config_.kv_heads,
                                  config_.head_dim,
                                  config_.linear_key_heads,
                                  config_.linear_value_heads,
                                  config_.linear_key_dim,
                                  config_.linear_value_dim,
                                  config_.linear_conv_kernel,
                                  options_.step_rows,
                                  options_.mtp ? 1 : 0,
                                  options_.kv == KvFormat::kQ8 ? 1 : 0};
  for (std::int64_t n = 0; n < config_.layer_count(); ++n) {
    sizes.push_back(config_.layers[static_cast<std::size_t>(n)] == spec::LayerKind::kFull ? 1 : 0);
    sizes.push_back(config_.is_ple_layer(n) ? config_.ple->window() : 0);
  }
  if (config_.indexer) sizes.insert(sizes.end(), {config_.indexer->head_dim, config_.indexer->ratio});
  return checksum(std::as_bytes(std::span(sizes)));
}

std::vector<std::byte> SequenceState::serialize() {
  assert(pending() == 0);
  std::vector<std::byte> out;
  const std::uint64_t header[] = {kMagic, geometry(), static_cast<std::uint64_t>(length_)};
  const auto raw = std::as_bytes(std::span(header));
  out.assign(raw.begin(), raw.end());
  const auto tokens = std::as_bytes(std::span(tokens_));
  out.insert(out.end(), tokens.begin(), tokens.end());
  write_parts(recurrent_parts(), out);
  write_parts(token_parts(length_), out);
  return out;
}

Result<void> SequenceState::deserialize(std::span<const std::byte> bytes) {
  std::uint64_t header[3] = {0, 0, 0};
  if (bytes.size() < sizeof(header)) {
    return make_error(ErrorCode::kCorrupt, "saved state: {} bytes, at least {} needed", bytes.size(),
                      sizeof(header));
  }
  std::memcpy(header, bytes.data(), sizeof(header));
  if (header[0] != kMagic) return make_error(ErrorCode::kCorrupt, "saved state: not written by this version");
  if (header[1] != geometry())
    return make_error(ErrorCode::kCorrupt, "saved state: of another model or other options");
  if (header[2] > static_cast<std::uint64_t>(options_.context)) {
    return make_error(ErrorCode::kLimit, "saved state: {} tokens, the context holds {}", header[2],
                      options_.context);
  }
  const auto length = static_cast<std::int64_t>(header[2]);
  std::size_t needed = sizeof(header) + header[2] * sizeof(std::int32_t);
  for (const auto& parts : {recurrent_parts(), token_parts(length)}) {
    for (const Part& part : parts) needed += part.bytes;
  }
  if (bytes.size() != needed) {
    return make_error(ErrorCode::kCorrupt, "saved state of {} tokens: {} bytes found, this model needs {}",
                      length, bytes.size(), needed);
  }
  bytes = bytes.subspan(sizeof(header));
  std::vector<std::int32_t> tokens(header[2]);
  std::memcpy(tokens.data(), bytes.data(), tokens.size() * sizeof(std::int32_t));
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= config_.vocab) {
      return make_error(ErrorCode::kCorrupt, "saved state: token {}, needed 0 to {}", token,
                        config_.vocab - 1);
    }
  }
  rollback();
  tokens_ = std::move(tokens);
  bytes = bytes.subspan(tokens_.size() * sizeof(std::int32_t));
  length_ = length;
  read_parts(recurrent_parts(), bytes);
  read_parts(token_parts(length), bytes);
  return {};
}

}  // namespace sluice::model
