#include "hub/shard_window.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "hub/part_file.h"

namespace sluice::hub {
namespace {

constexpr std::uint64_t kFirstRead = 65536;  // holds the header of most shards
constexpr std::size_t kMostWitnesses = 65536;

enum class Status { kPending, kDownloading, kOnDisk, kReleased, kPacked };

/// A part of a shard that was read before the shard was there: what it hashed to.
using Witnesses = std::map<std::pair<std::uint64_t, std::uint64_t>, std::string>;

struct Shard {
  RepoFile file;
  Status status = Status::kPending;
  std::shared_ptr<const File> disk;  // while kOnDisk
  Witnesses witnesses;               // by offset and length; until kOnDisk

  [[nodiscard]] bool to_come() const { return status == Status::kPending || status == Status::kDownloading; }
  [[nodiscard]] bool held() const { return to_come() || status == Status::kOnDisk; }
};

std::string hash_of(std::span<const std::byte> bytes) {
  Digest digest = Digest::sha256();
  digest.add(bytes);
  return digest.hex();
}

Result<void> check_witnesses(const File& disk, const Witnesses& witnesses) {
  std::vector<std::byte> bytes;
  for (const auto& [where, hash] : witnesses) {
    bytes.resize(static_cast<std::size_t>(where.second));
    SLUICE_TRY(disk.read_at(where.first, bytes));
    if (hash_of(bytes) != hash) {
      return make_error(ErrorCode::kCorrupt, "{}: {} bytes at {} were other ones when they were read ahead",
                        disk.name(), where.second, where.first);
    }
  }
  return {};
}

}  // namespace

struct ShardWindow::State {
  State(const Repository& from, std::filesystem::path into, ShardWindowOptions with)
      : repository(from),
        folder(std::move(into)),
        options(std::move(with)),
        shards_on_disk(options.shards_on_disk),
        held_back(options.hold) {}

  const Repository repository;
  const std::filesystem::path folder;
  const ShardWindowOptions options;

  mutable std::mutex mutex;  // of all below
  std::condition_variable changed;
  std::vector<Shard> shards;  // its size never changes
  std::vector<HttpClient> idle;
  std::size_t shards_on_disk;
  bool held_back;
  bool verified_only = false;
  std::uint64_t fetched = 0;
  std::optional<Error> failed;
  bool stopped = false;

  std::thread thread;  // the window's alone

  [[nodiscard]] std::optional<std::size_t> find(std::string_view path) const {
    const auto at =
        std::find_if(shards.begin(), shards.end(), [path](const Shard& s) { return s.file.path == path; });
    return at == shards.end() ? std::nullopt : std::optional(static_cast<std::size_t>(at - shards.begin()));
  }

  void run();
  Result<void> fetch(std::size_t index);
  Result<void> arrived(std::size_t index);
  Result<void> read(std::size_t index, std::uint64_t offset, std::span<std::byte> to);
  Result<void> direct(std::size_t index, std::uint64_t offset, std::span<std::byte> to);
  Result<std::vector<std::byte>> header(std::size_t index);

  /// The first shard that keeps `index` from ever arriving; with the mutex held.
  [[nodiscard]] const Shard* blocked_by(std::size_t index) const {
    const auto end = shards.begin() + static_cast<std::ptrdiff_t>(index);
    const auto before = std::count_if(shards.begin(), end, [](const Shard& s) { return s.held(); });
    if (static_cast<std::size_t>(before) < shards_on_disk) return nullptr;
    return &*std::find_if(shards.begin(), end, [](const Shard& s) { return s.held(); });
  }
  [[nodiscard]] bool is_next(std::size_t index) const {
    const auto end = shards.begin() + static_cast<std::ptrdiff_t>(index);
    return std::none_of(shards.begin(), end, [](const Shard& s) { return s.to_come(); });
  }
  [[nodiscard]] bool outer_cancelled() const {
    const Cancelled& cancelled = options.download.http.connection.cancelled;
    return cancelled && cancelled();
  }
};

/// One shard as the packer sees it.
class ShardWindow::WindowFile final : public File {
 public:
  WindowFile(std::shared_ptr<State> state, std::size_t index, std::vector<std::byte> header)
      : state_(std::move(state)), index_(index), header_(std::move(header)) {
    const RepoFile& file = state_->shards[index].file;  // constant after the start
    size_ = file.size;
    name_ = (state_->folder / file.path).string();
  }

  [[nodiscard]] std::uint64_t size() const override { return size_; }
  [[nodiscard]] const std::string& name() const override { return name_; }

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> to) const override {
    if (offset > size_ || to.size() > size_ - offset) {
      return make_error(ErrorCode::kCorrupt, "{}: {} bytes at offset {} needed, the file has {} bytes", name_,
                        to.size(), offset, size_);
    }
    if (to.empty()) return {};
    if (offset + to.size() <= header_.size()) {
      std::memcpy(to.data(), header_.data() + offset, to.size());
      return {};
    }
    return state_->read(index_, offset, to);
  }

 private:
  std::shared_ptr<State> state_;
  std::size_t index_;
  std::vector<std::byte> header_;
  std::uint64_t size_ = 0;
  std::string name_;
};

/// The background thread: one shard after the other, as long as there is room in the window.
void ShardWindow::State::run() {
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return stopped || !held_back; });
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return stopped || !shards[i].to_come() || blocked_by(i) == nullptr; });
      if (stopped) return;
      if (!shards[i].to_come()) continue;
      shards[i].status = Status::kDownloading;
    }
    auto got = fetch(i);
    if (got.ok()) got = arrived(i);
    const std::lock_guard lock(mutex);
    if (shards[i].status == Status::kReleased) {
      // Released on the way: what has come is of no use.
      got = options.keep_source ? Result<void>() : remove_download(folder / shards[i].file.path);
    }
    if (!got.ok()) {
      failed = got.error();
      changed.notify_all();
      return;
    }
  }
}

Result<void> ShardWindow::State::fetch(std::size_t index) {
  DownloadOptions download = options.download;
  download.http.connection.cancelled = [this, index] {
    if (outer_cancelled()) return true;
    const std::lock_guard lock(mutex);
    return stopped || shards[index].status == Status::kReleased;
  };
  const RepoFile& file = shards[index].file;
  if (options.progress) {
    download.progress = [this, &file](std::uint64_t done, std::uint64_t total) {
      options.progress(file, done, total);
    };
  }
  const auto downloaded = download_file(repository, file, folder, download);
  if (!downloaded.ok()) return downloaded.error();
  const std::lock_guard lock(mutex);
  fetched += downloaded->fetched;
  return {};
}

/// Verified and on disk: hands it to the readers, unless what they read ahead was something else.
Result<void> ShardWindow::State::arrived(std::size_t index) {
  SLUICE_ASSIGN(std::shared_ptr<const File> disk, open_file(folder / shards[index].file.path));
  for (;;) {
    std::unique_lock lock(mutex);
    Shard& shard = shards[index];
    if (shard.status != Status::kDownloading) return {};
    if (shard.witnesses.empty()) {
      shard.disk = std::move(disk);
      shard.status = Status::kOnDisk;
      changed.notify_all();
      return {};
    }
    const Witnesses witnesses = std::exchange(shard.witnesses, {});
    lock.unlock();
    SLUICE_TRY(check_witnesses(*disk, witnesses));
  }
}

Result<void> ShardWindow::State::read(std::size_t index, std::uint64_t offset, std::span<std::byte> to) {
  std::unique_lock lock(mutex);
  const bool small = !verified_only && (held_back || to.size() <= options.direct_limit);
  for (;;) {
    const Shard& shard = shards[index];
    if (shard.status == Status::kOnDisk) {
      const std::shared_ptr<const File> disk = shard.disk;
      lock.unlock();
      return disk->read_at(offset, to);
    }
    if (shard.status == Status::kReleased) {
      return make_error(ErrorCode::kInvalidArgument, "{}: read after it was released", shard.file.path);
    }
    if (shard.status == Status::kPacked && !small) {
      return make_error(ErrorCode::kInvalidArgument, "{}: {} bytes asked of it, but it is packed already",
                        shard.file.path, to.size());
    }
    if (stopped) return make_error(ErrorCode::kCancelled, "{}: cancelled", shard.file.path);
    if (failed && shard.status != Status::kPacked) return *failed;
    const Shard* blocker = shard.status == Status::kPacked ? nullptr : blocked_by(index);
    if (small && (held_back || shard.status == Status::kPacked || blocker != nullptr || !is_next(index))) {
      lock.unlock();
      return direct(index, offset, to);
    }
    if (blocker != nullptr && !verified_only) {
      return make_error(
          ErrorCode::kInvalidArgument,
          "{}: {} bytes asked of it, but it is not downloaded before {} is released ({} shards at a time)",
          shard.file.path, to.size(), blocker->file.path, shards_on_disk);
    }
    changed.wait(lock);
  }
}

Result<void> ShardWindow::State::direct(std::size_t index, std::uint64_t offset, std::span<std::byte> to) {
  const RepoFile& file = shards[index].file;
  std::optional<HttpClient> client;
  {
    const std::lock_guard lock(mutex);
    if (!idle.empty()) {
      client = std::move(idle.back());
      idle.pop_back();
    }
  }
  if (!client) {
    HttpOptions http = options.download.http;
    http.connection.cancelled = [this] {
      if (outer_cancelled()) return true;
      const std::lock_guard lock(mutex);
      return stopped;
    };
    client.emplace(repository.endpoint(), http);
  }
  const auto answer = client->get_range(repository.file_url(file), offset, to, file.size);
  const std::string hash = answer.ok() ? hash_of(to) : std::string();

  std::unique_lock lock(mutex);
  idle.push_back(std::move(*client));
  if (!answer.ok()) return answer.error();
  SLUICE_TRY(repository.check_answer(file, *answer));
  Shard& shard = shards[index];
  if (shard.status == Status::kOnDisk) {  // it has arrived meanwhile: what is verified counts
    const std::shared_ptr<const File> disk = shard.disk;
    lock.unlock();
    return disk->read_at(offset, to);
  }
  if (!shard.to_come()) return {};
  const auto [at, fresh] = shard.witnesses.emplace(std::pair(offset, std::uint64_t{to.size()}), hash);
  if (at->second != hash) {
    return make_error(ErrorCode::kCorrupt, "{}: {} bytes at {} differ from one request to the next",
                      file.path, to.size(), offset);
  }
  if (shard.witnesses.size() > kMostWitnesses) {
    return make_error(ErrorCode::kLimit, "{}: more than {} reads before it was downloaded", file.path,
                      kMostWitnesses);
  }
  return {};
}

/// Bytes [0, 8 + N) of a safetensors file, N being its first eight bytes.
Result<std::vector<std::byte>> ShardWindow::State::header(std::size_t index) {
  const RepoFile& file = shards[index].file;
  const auto fill = [&](std::uint64_t offset, std::span<std::byte> to) -> Result<void> {
    std::unique_lock lock(mutex);
    const std::shared_ptr<const File> disk = shards[index].disk;
    lock.unlock();
    return disk ? disk->read_at(offset, to) : direct(index, offset, to);
  };
  if (file.size < 8) {
    return make_error(ErrorCode::kCorrupt, "{}: {} bytes, a safetensors file has 8 or more", file.path,
                      file.size);
  }
  std::vector<std::byte> bytes(static_cast<std::size_t>(std::min(file.size, kFirstRead)));
  SLUICE_TRY(fill(0, bytes));
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i) length |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  if (length > file.size - 8) {
    return make_error(ErrorCode::kCorrupt, "{}: a header of {} bytes in a file of {}", file.path, length,
                      file.size);
  }
  if (length > options.header_limit) {
    return make_error(ErrorCode::kLimit, "{}: a header of {} bytes, at most {} are read", file.path, length,
                      options.header_limit);
  }
  const std::size_t have = bytes.size();
  bytes.resize(static_cast<std::size_t>(8 + length));
  if (bytes.size() > have) SLUICE_TRY(fill(have, std::span(bytes).subspan(have)));
  return bytes;
}

ShardWindow::ShardWindow(std::shared_ptr<State> state) : state_(std::move(state)) {}

ShardWindow::~ShardWindow() {
  stop();
  if (state_->thread.joinable()) state_->thread.join();
}

void ShardWindow::stop() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
  }
  state_->changed.notify_all();
}

Result<std::unique_ptr<ShardWindow>> ShardWindow::start(const Repository& repository,
                                                        const std::vector<std::string>& shards,
                                                        const std::filesystem::path& folder,
                                                        const ShardWindowOptions& options) {
  if (options.shards_on_disk == 0) {
    return make_error(ErrorCode::kInvalidArgument, "shards on disk: 0, at least 1 needed");
  }
  auto state = std::make_shared<State>(repository, folder, options);
  for (const std::string& path : shards) {
    const RepoFile* file = repository.find(path);
    if (file == nullptr) {
      return make_error(ErrorCode::kNotFound, "{}: has no file '{}'", repository.name().shown(),
                        printable(path));
    }
    if (state->find(path)) return make_error(ErrorCode::kInvalidArgument, "shard {}: named twice", path);
    const bool packed = options.packed.contains(path);
    if (packed && !options.keep_source) SLUICE_TRY(remove_download(folder / path));
    state->shards.push_back({*file, packed ? Status::kPacked : Status::kPending, nullptr, {}});
  }
  std::unique_ptr<ShardWindow> window(new ShardWindow(state));
  try {
    state->thread = std::thread([raw = state.get()] { raw->run(); });
  } catch (const std::system_error& e) {
    return make_error(ErrorCode::kIo, "no thread for downloading: {}", e.what());
  }
  return window;
}

Result<void> ShardWindow::begin(const std::set<std::string, std::less<>>& packed,
                                std::size_t shards_on_disk) {
  if (shards_on_disk == 0) {
    return make_error(ErrorCode::kInvalidArgument, "shards on disk: 0, at least 1 needed");
  }
  {
    const std::lock_guard lock(state_->mutex);
    for (Shard& shard : state_->shards) {
      if (!packed.contains(shard.file.path) || shard.status != Status::kPending) continue;
      if (!state_->options.keep_source) {
        SLUICE_TRY(remove_download(state_->folder / shard.file.path));
      }
      shard.status = Status::kPacked;
    }
    state_->shards_on_disk = shards_on_disk;
    state_->held_back = false;
    state_->verified_only = true;
  }
  state_->changed.notify_all();
  return {};
}

Result<std::unique_ptr<File>> ShardWindow::open(std::string_view shard) {
  const auto index = state_->find(shard);
  if (!index)
    return make_error(ErrorCode::kNotFound, "shard {}: not among those to download", printable(shard));
  SLUICE_ASSIGN(std::vector<std::byte> header, state_->header(*index));
  return std::unique_ptr<File>(std::make_unique<WindowFile>(state_, *index, std::move(header)));
}

Result<void> ShardWindow::release(std::string_view shard) {
  const auto index = state_->find(shard);
  if (!index)
    return make_error(ErrorCode::kNotFound, "shard {}: not among those to download", printable(shard));
  Status before{};
  {
    const std::lock_guard lock(state_->mutex);
    Shard& released = state_->shards[*index];
    before = released.status;
    if (before == Status::kPacked || before == Status::kReleased) return {};
    released.disk.reset();
    released.witnesses.clear();
    released.status = Status::kReleased;
    // One that is being downloaded is removed by whoever downloads it.
    if (before != Status::kDownloading && !state_->options.keep_source) {
      auto removed = remove_download(state_->folder / released.file.path);
      if (!removed.ok()) {
        state_->changed.notify_all();
        return removed;
      }
    }
  }
  state_->changed.notify_all();
  return {};
}

std::uint64_t ShardWindow::fetched() const {
  const std::lock_guard lock(state_->mutex);
  return state_->fetched;
}

std::optional<Error> ShardWindow::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failed;
}

}  // namespace sluice::hub
