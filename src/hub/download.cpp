#include "hub/download.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "base/work_together.h"
#include "hub/part_file.h"

namespace sluice::hub {
namespace {

/// One pass over what is missing of a part, by all workers together.
class Pass {
 public:
  enum class End { kDone, kFailed, kChanged, kNoRanges };

  Pass(const Repository& repository, const RepoFile& file, PartFile& part, const DownloadOptions& options)
      : repository_(repository),
        file_(file),
        part_(part),
        options_(options),
        url_(repository.file_url(file)) {}

  /// Every worker takes one range after the other.
  End in_ranges() {
    std::size_t missing = 0;
    for (std::size_t i = 0; i < part_.ranges(); ++i) missing += part_.complete(i) ? 0 : 1;
    const std::size_t count =
        std::clamp<std::size_t>(missing, 1, static_cast<std::size_t>(std::max(options_.workers, 1)));
    work_together(count, [this](std::size_t) { work(); });
    return end_;
  }

  /// From a server that ignores ranges: everything, in order, from the first byte.
  End whole();

  [[nodiscard]] const Error& error() const { return *error_; }
  [[nodiscard]] std::uint64_t fetched() const { return fetched_; }

 private:
  class RangeSink;
  class WholeSink;

  void work();
  std::optional<std::size_t> claim();
  Result<void> accept(const Answer& answer);
  Result<void> append(std::size_t index, std::span<const std::byte> bytes);
  HttpClient client() const;
  Error end_with(End end, Error error);

  const Repository& repository_;
  const RepoFile& file_;
  PartFile& part_;
  const DownloadOptions& options_;
  const Url url_;

  std::atomic<bool> stop_ = false;
  std::atomic<std::uint64_t> fetched_ = 0;
  std::mutex mutex_;  // of what follows
  std::size_t next_ = 0;
  bool answered_ = false;
  End end_ = End::kDone;
  std::optional<Error> error_;
  std::mutex progress_mutex_;
};

/// The first to end a pass says how it ended.
Error Pass::end_with(End end, Error error) {
  const std::lock_guard lock(mutex_);
  if (!error_) {
    end_ = end;
    error_ = error;
  }
  stop_ = true;
  return error;
}

Result<void> Pass::accept(const Answer& answer) {
  SLUICE_TRY(repository_.check_answer(file_, answer));
  std::unique_lock lock(mutex_);
  const bool known = answered_ || part_.total_done() > 0;
  answered_ = true;
  if (!known) return part_.set_etag(answer.etag);
  if (answer.etag == part_.etag()) return {};
  const Error changed =
      make_error(ErrorCode::kCorrupt, "{}: changed at the hub while it was downloaded (ETag {}, then {})",
                 file_.path, part_.etag(), answer.etag);
  lock.unlock();
  return end_with(End::kChanged, changed);
}

Result<void> Pass::append(std::size_t index, std::span<const std::byte> bytes) {
  SLUICE_TRY(part_.append(index, bytes));
  if (options_.progress) {
    const std::lock_guard lock(progress_mutex_);
    options_.progress(part_.total_done(), file_.size);
  }
  return {};
}

HttpClient Pass::client() const {
  HttpOptions http = options_.http;
  http.connection.cancelled = [this, outer = options_.http.connection.cancelled] {
    return stop_.load() || (outer && outer());
  };
  return {repository_.endpoint(), http};
}

class Pass::RangeSink final : public BodySink {
 public:
  RangeSink(Pass& pass, std::size_t index) : pass_(pass), index_(index) {}
  std::optional<ByteRange> range() override {
    ByteRange range = pass_.part_.range(index_);
    range.first += pass_.part_.done(index_);
    return range;
  }
  Result<void> begin(const Answer& answer) override {
    SLUICE_TRY(pass_.accept(answer));
    if (answer.partial) return {};
    return pass_.end_with(End::kNoRanges, make_error(ErrorCode::kUnsupported, "{}: the server ignores ranges",
                                                     pass_.url_.shown()));
  }
  Result<bool> bytes(std::span<const std::byte> bytes) override {
    pass_.fetched_ += bytes.size();
    SLUICE_TRY(pass_.append(index_, bytes));
    return !pass_.part_.complete(index_);
  }
  [[nodiscard]] std::uint64_t progress() const override { return pass_.part_.done(index_); }

 private:
  Pass& pass_;
  std::size_t index_;
};

/// Writes what is missing and lets go by what is there.
class Pass::WholeSink final : public BodySink {
 public:
  explicit WholeSink(Pass& pass) : pass_(pass) {}
  std::optional<ByteRange> range() override { return std::nullopt; }
  Result<void> begin(const Answer& answer) override {
    at_ = 0;
    return pass_.accept(answer);
  }
  Result<bool> bytes(std::span<const std::byte> bytes) override {
    pass_.fetched_ += bytes.size();
    PartFile& part = pass_.part_;
    while (!bytes.empty()) {
      const std::uint64_t index = at_ / part.range_bytes();
      if (index >= part.ranges()) {
        return make_error(ErrorCode::kCorrupt, "{}: more than the {} bytes listed", pass_.file_.path,
                          pass_.file_.size);
      }
      const ByteRange range = part.range(index);
      const auto here =
          bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), range.last + 1 - at_)));
      const std::uint64_t missing = range.first + part.done(index);
      const std::uint64_t skip = std::min<std::uint64_t>(missing > at_ ? missing - at_ : 0, here.size());
      if (skip < here.size()) SLUICE_TRY(pass_.append(index, here.subspan(static_cast<std::size_t>(skip))));
      at_ += here.size();
      bytes = bytes.subspan(here.size());
    }
    return at_ < pass_.file_.size;
  }
  [[nodiscard]] std::uint64_t progress() const override { return pass_.part_.total_done(); }

 private:
  Pass& pass_;
  std::uint64_t at_ = 0;
};

std::optional<std::size_t> Pass::claim() {
  const std::lock_guard lock(mutex_);
  while (next_ < part_.ranges() && part_.complete(next_)) ++next_;
  if (stop_ || next_ >= part_.ranges()) return std::nullopt;
  return next_++;
}

void Pass::work() {
  HttpClient client = this->client();
  while (const auto index = claim()) {
    RangeSink sink(*this, *index);
    while (!part_.complete(*index)) {
      const std::uint64_t before = sink.progress();
      auto got = client.get(url_, sink);
      if (got.ok() && sink.progress() == before) {
        got = make_error(ErrorCode::kCorrupt, "{}: an empty answer", url_.shown());
      }
      if (!got.ok()) {
        end_with(End::kFailed, got.error());
        return;
      }
    }
  }
}

Pass::End Pass::whole() {
  HttpClient client = this->client();
  WholeSink sink(*this);
  const auto got = client.get(url_, sink);
  if (!got.ok()) {
    end_with(End::kFailed, got.error());
  } else if (part_.total_done() < file_.size) {
    end_with(End::kFailed, make_error(ErrorCode::kCorrupt, "{}: {} bytes, {} when it was listed", file_.path,
                                      part_.total_done(), file_.size));
  }
  return end_;
}

}  // namespace

Result<Downloaded> download_file(const Repository& repository, const RepoFile& file,
                                 const std::filesystem::path& folder, const DownloadOptions& options) {
  SLUICE_TRY(check_path(file.path));
  const std::filesystem::path path = folder / file.path;
  const Cancelled& cancelled = options.http.connection.cancelled;
  Downloaded downloaded;
  const auto present = checksum_on_disk(path, file, cancelled);
  if (present.ok() && *present == file.checksum()) {
    downloaded.resumed = file.size;
    return downloaded;
  }
  if (!present.ok() && present.error().code == ErrorCode::kCancelled) return present.error();

  SLUICE_ASSIGN(const auto part, PartFile::open(path, file, repository.commit(), options.range_bytes));
  downloaded.resumed = part->total_done();
  bool ranges = true;
  for (int attempt = 0;;) {
    Pass pass(repository, file, *part, options);
    const Pass::End end = ranges ? pass.in_ranges() : pass.whole();
    downloaded.fetched += pass.fetched();
    if (end == Pass::End::kNoRanges) {
      ranges = false;
      continue;
    }
    if (end == Pass::End::kFailed) return pass.error();
    Error wrong;
    if (end == Pass::End::kChanged) {
      wrong = pass.error();
    } else {
      SLUICE_ASSIGN(const std::string found, part->checksum(file, cancelled));
      if (found == file.checksum()) break;
      wrong = make_error(ErrorCode::kCorrupt, "{}: checksum {}, {} needed; removed", file.path, found,
                         file.checksum());
    }
    if (++attempt == 2) {
      part->remove();
      return wrong;
    }
    SLUICE_TRY(part->restart());
    downloaded.resumed = 0;
  }
  SLUICE_TRY(part->commit());
  return downloaded;
}

}  // namespace sluice::hub
