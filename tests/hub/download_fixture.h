// A repository on the test server and a folder to download to.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "base/file.h"
#include "hub/download.h"
#include "support/hub_server.h"
#include "support/temp_folder.h"

namespace sluice::test {

class DownloadFixture : public testing::Test {
 protected:
  static constexpr std::uint64_t kRange = 65536;

  /// The server's files, listed; adds the options that tests use.
  const hub::Repository& repository() {
    if (!repository_) {
      hub::HttpClient client(server_.client_endpoint(), quick(clock_));
      auto opened =
          hub::Repository::open(server_.client_endpoint(), *hub::parse_repo_name("acme/tiny"), client);
      EXPECT_TRUE(opened.ok()) << (opened.ok() ? "" : opened.error().message);
      repository_ = std::move(opened).value();
    }
    return *repository_;
  }
  hub::DownloadOptions options(int workers = 4) {
    hub::DownloadOptions options;
    options.http = quick(clock_);
    options.workers = workers;
    options.range_bytes = kRange;
    return options;
  }
  Result<hub::Downloaded> download(const std::string& path, const hub::DownloadOptions& options) {
    return hub::download_file(repository(), *repository().find(path), folder_.path(), options);
  }
  Result<hub::Downloaded> download(const std::string& path) { return download(path, options()); }
  [[nodiscard]] std::string on_disk(const std::string& path) const {
    const auto text = read_text_file(folder_ / path, std::uint64_t{1} << 30);
    return text.ok() ? *text : "(" + text.error().message + ")";
  }
  [[nodiscard]] bool exists(const std::string& path) const { return std::filesystem::exists(folder_ / path); }
  /// Neither part nor journal.
  [[nodiscard]] bool clean(const std::string& path) const {
    return !exists(path + ".part") && !exists(path + ".part.ranges");
  }

  FakeClock clock_;
  TempFolder folder_;
  HubServer server_;

 private:
  std::optional<hub::Repository> repository_;
};

}  // namespace sluice::test
