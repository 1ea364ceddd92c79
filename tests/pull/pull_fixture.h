// A random checkpoint in a folder and on the test server, and what packing it locally makes.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pull/pull.h"
#include "support/hub_server.h"
#include "support/random_model.h"
#include "support/temp_folder.h"

namespace sluice::test {

/// Which of several shards a tensor goes to, by its name in the file.
using ShardOf = std::function<std::size_t(const std::string& tensor)>;

/// Turns a checkpoint of one file into one of `shards` with an index. Without a function tensors go by name,
/// and shards are of about one size.
void split_model(const std::filesystem::path& folder, std::size_t shards, const ShardOf& shard_of = {});

/// Of a tiny model with a shard for each layer, one before them and one, of the MTP head, after them. No
/// tensor or expert needs two.
inline constexpr std::size_t kLayerShards = 6;
std::size_t by_layer(const std::string& tensor);

/// "model-00002-of-00005.safetensors" for 1 of 5.
std::string shard_name(std::size_t index, std::size_t shards);

/// Options for tests: small ranges, several threads, no pauses.
pull::PullOptions quick_pull(FakeClock& clock);

class PullFixture : public testing::Test {
 protected:
  /// Puts all files of the folder on the server.
  void serve(const std::filesystem::path& folder);
  /// A tiny model of the form, in so many shards, in source_ and on the server.
  void serve_model(RandomModel model, std::size_t shards, const ShardOf& shard_of = {});

  [[nodiscard]] pull::PullOptions options() { return quick_pull(clock_); }
  Result<pull::PullReport> pull(const pull::PullOptions& options) {
    return pull::pull(server_.client_endpoint(), *hub::parse_repo_name("acme/tiny"), target_, options);
  }
  Result<pull::PullReport> pull() { return pull(options()); }
  void expect_pulled(const pull::PullOptions& options);
  /// The store in target_ is that of source_, but for the source's name, and nothing else is there.
  void expect_store(const pack::PackOptions& options = {});
  /// Neither a store nor anything that an open function takes for a model.
  void expect_no_model() const;
  /// Bytes of a shard that were sent other than for its header and for small reads.
  [[nodiscard]] std::uint64_t content_served(const std::string& shard) const;

  FakeClock clock_;
  TempFolder folder_;
  const std::filesystem::path source_ = folder_ / "source";
  const std::filesystem::path target_ = folder_ / "target";
  const std::filesystem::path work_ = target_ / ".pulling";
  HubServer server_;
};

}  // namespace sluice::test
