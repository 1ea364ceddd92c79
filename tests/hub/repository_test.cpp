#include "hub/repository.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/hub_server.h"

namespace sluice::hub {
namespace {

using test::HubReply;
using test::HubRequest;
using testing::HasSubstr;

class RepositoryTest : public testing::Test {
 protected:
  RepositoryTest() {
    server_.add("config.json", "{\"a\": 1}", false);
    server_.add("sub folder/model-1.safetensors", test::noise(3000));
    server_.add("sub folder/model-2.safetensors", test::noise(2000, 2));
    server_.add("tokenizer.json", "{}", false);
    server_.add("empty", "", false);
  }
  Result<Repository> open(const std::string& name = "acme/tiny") {
    return Repository::open(server_.client_endpoint(token_), *parse_repo_name(name), client());
  }
  HttpClient& client() {
    if (!client_) client_.emplace(server_.client_endpoint(token_), test::quick(clock_));
    return *client_;
  }
  /// Answers requests of the tree with `body`.
  void tree_is(const std::string& body) {
    server_.change = [body](const HubRequest& request, HubReply& reply) {
      if (request.target.find("/tree/") != std::string::npos) reply.body = body;
    };
  }

  test::FakeClock clock_;
  test::HubServer server_;
  std::string token_;
  std::optional<HttpClient> client_;
};

TEST_F(RepositoryTest, ListsFilesOfTheCommitOverAllPages) {
  server_.page_size = 2;
  const auto repository = open();
  ASSERT_TRUE(repository.ok()) << repository.error().message;
  EXPECT_EQ(repository->commit(), test::kCommit);
  ASSERT_EQ(repository->files().size(), 5U);
  const RepoFile* file = repository->find("sub folder/model-1.safetensors");
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->size, 3000U);
  EXPECT_EQ(file->sha256, test::sha256_of(test::noise(3000)));
  EXPECT_FALSE(repository->find("config.json")->lfs());
  EXPECT_EQ(repository->find("a folder"), nullptr);
  EXPECT_EQ(server_.requests().size(), 4U);
}

TEST_F(RepositoryTest, ReadsSmallFilesOfBothKinds) {
  const auto repository = open();
  ASSERT_TRUE(repository.ok());
  EXPECT_EQ(*repository->read_small(client(), "config.json", 100), "{\"a\": 1}");
  EXPECT_EQ(*repository->read_small(client(), "empty", 100), "");
  EXPECT_EQ(*repository->read_small(client(), "sub folder/model-1.safetensors", 3000), test::noise(3000));
  EXPECT_EQ(repository->read_small(client(), "config.json", 7).error().code, ErrorCode::kLimit);
  EXPECT_EQ(repository->read_small(client(), "other", 7).error().code, ErrorCode::kNotFound);
}

TEST_F(RepositoryTest, ContentWithAnotherChecksumIsReadOnceMoreThenRefused) {
  const auto repository = open();
  ASSERT_TRUE(repository.ok());
  int wrong = 1;
  server_.change = [&](const HubRequest& request, HubReply& reply) {
    if (!request.file.empty() && reply.status == 200 && wrong-- > 0) reply.body[0] ^= 1;
  };
  EXPECT_TRUE(repository->read_small(client(), "config.json", 100).ok());
  wrong = 2;
  EXPECT_EQ(repository->read_small(client(), "config.json", 100).error().code, ErrorCode::kCorrupt);
  wrong = 2;
  EXPECT_EQ(repository->read_small(client(), "sub folder/model-2.safetensors", 2000).error().code,
            ErrorCode::kCorrupt);
}

TEST_F(RepositoryTest, AnAnswerForAnotherCommitOrContentIsRefused) {
  const auto repository = open();
  ASSERT_TRUE(repository.ok());
  server_.change = [](const HubRequest& request, HubReply& reply) {
    if (!request.file.empty()) reply.set("X-Repo-Commit", std::string(40, 'f'));
  };
  EXPECT_THAT(repository->read_small(client(), "config.json", 100).error().message, HasSubstr("commit"));
  server_.change = [](const HubRequest& request, HubReply& reply) {
    if (!request.file.empty() && !request.cdn) reply.set("X-Linked-Etag", '"' + std::string(64, 'f') + '"');
  };
  EXPECT_THAT(repository->read_small(client(), "sub folder/model-2.safetensors", 2000).error().message,
              HasSubstr("now has content"));
}

TEST_F(RepositoryTest, MissingRepositoriesAndTokensAreNamed) {
  const auto none = open("acme/none");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(none.error().message, HasSubstr("acme/none@main: no such repository or revision"));
  EXPECT_EQ(open("acme/tiny@v9").error().code, ErrorCode::kNotFound);
  server_.token = "secret";
  EXPECT_THAT(open().error().message, HasSubstr("HF_TOKEN"));
  token_ = "secret";
  client_.reset();
  EXPECT_TRUE(open().ok());
}

TEST_F(RepositoryTest, GarbageFromTheApiIsRefused) {
  const std::string oid(40, 'a');
  const std::string sha(64, 'b');
  const auto entry = [&](const std::string& path, const std::string& rest) {
    return R"([{"type": "file", "path": ")" + path + "\", " + rest + "}]";
  };
  const std::string good = "\"oid\": \"" + oid + "\", \"size\": 5";
  tree_is(entry("a", good));
  ASSERT_TRUE(open().ok());
  for (const std::string& body : {
           std::string(),
           std::string("<html>"),
           std::string("{}"),
           std::string("[1]"),
           std::string("[{\"type\": \"file\"}]"),
           std::string(100000, '['),
           entry("../a", good),
           entry("/a", good),
           entry("a\\u0000b", good),
           entry("a\\n", good),
           entry("a", "\"oid\": \"" + oid + "\""),
           entry("a", "\"oid\": \"xyz\", \"size\": 5"),
           entry("a", "\"oid\": \"" + oid + "\", \"size\": -5"),
           entry("a", "\"oid\": \"" + oid + "\", \"size\": 1e300"),
           entry("a", "\"oid\": \"" + oid + "\", \"size\": 18446744073709551615"),
           entry("a", good + ", \"lfs\": 5"),
           entry("a", good + ", \"lfs\": {\"oid\": \"" + sha + "\", \"size\": 6}"),
           entry("a", good + ", \"lfs\": {\"oid\": \"" + oid + "\", \"size\": 5}"),
           entry("a", good + R"(}, {"type": "file", "path": "A", )" + good),
           entry("\xff\xfe", good),
       }) {
    tree_is(body);
    const auto opened = open();
    EXPECT_FALSE(opened.ok()) << body.substr(0, 100);
  }
  server_.change = [](const HubRequest& request, HubReply& reply) {
    if (request.target.find("/revision/") != std::string::npos) reply.body = R"({"sha": "../../etc"})";
  };
  EXPECT_EQ(open().error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(clock_.sleeps().empty());
}

TEST_F(RepositoryTest, AListThatDoesNotEndOrLeadsElsewhereIsRefused) {
  std::string next;
  int page = 0;
  const auto change = [&](const HubRequest& request, HubReply& reply) {
    if (request.target.find("/tree/") == std::string::npos) return;
    reply.body = "[]";
    reply.set("Link", "<" + next + fmt::format("{}", page) + ">; rel=\"next\"");
  };
  server_.change = change;
  next = server_.endpoint() + "/api/models/acme/tiny/tree/" + test::kCommit + "?page=";
  EXPECT_EQ(open().error().code, ErrorCode::kLimit) << "the same page again";
  server_.change = [&](const HubRequest& request, HubReply& reply) {
    ++page;
    change(request, reply);
  };
  EXPECT_EQ(open().error().code, ErrorCode::kLimit) << "always another page";
  next = server_.cdn() + "/x";
  EXPECT_EQ(open().error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace sluice::hub
