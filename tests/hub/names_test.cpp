#include <gtest/gtest.h>

#include <cstdlib>

#include "hub/endpoint.h"
#include "hub/repository.h"
#include "hub/url.h"

namespace sluice::hub {
namespace {

TEST(HubUrl, ParsesAndShowsNoQuery) {
  const auto url = parse_url("HTTPS://Example.test:8443/a/b?secret=1#part");
  ASSERT_TRUE(url.ok());
  EXPECT_EQ(url->origin(), "https://example.test:8443");
  EXPECT_EQ(url->target, "/a/b?secret=1");
  EXPECT_EQ(url->shown(), "https://example.test:8443/a/b");
  EXPECT_EQ(parse_url("http://example.test")->target, "/");
  EXPECT_EQ(parse_url("http://example.test")->port, 80);
  EXPECT_EQ(parse_url("http://example.test?q")->target, "/?q");
  EXPECT_EQ(parse_url("http://[::1]:80/")->host, "::1");
  EXPECT_EQ(parse_url("https://[::1]/")->host_header(), "[::1]");
}

TEST(HubUrl, RefusesWhatIsNoWebAddress) {
  for (const char* text :
       {"", "ftp://example.test/", "file:///etc/passwd", "//example.test/", "http:///x",
        "http://user:word@example.test/", "http://example.test:0/", "http://example.test:65536/",
        "http://example.test:8x/", "http://exa mple.test/", "http://[::1/", "http://[::1]x/"}) {
    EXPECT_FALSE(parse_url(text).ok()) << text;
  }
  EXPECT_FALSE(parse_url("http://example.test/a\r\nHost: other").ok());
  EXPECT_FALSE(parse_url("http://example.test/" + std::string(20000, 'a')).ok());
}

TEST(HubUrl, LocationsAreRelativeToWhereTheyWereFoundAndKeepTheirPercentSigns) {
  const Url base = *parse_url("https://hub.test/a/b?x=1");
  EXPECT_EQ(resolve_url(base, "/c?s=%2B%2f")->target, "/c?s=%2B%2f");
  EXPECT_EQ(resolve_url(base, "c")->target, "/a/c");
  EXPECT_EQ(resolve_url(base, "?y=http://z")->target, "/a/b?y=http://z");
  EXPECT_EQ(resolve_url(base, "/c?to=http://z/")->origin(), "https://hub.test:443");
  EXPECT_EQ(resolve_url(base, "//cdn.test/c")->origin(), "https://cdn.test:443");
  EXPECT_EQ(resolve_url(base, "http://cdn.test/c")->origin(), "http://cdn.test:80");
  EXPECT_FALSE(resolve_url(base, "ftp://cdn.test/c").ok());
  EXPECT_FALSE(resolve_url(base, "/c\nX: y").ok());
}

TEST(RepoName, ParsesOwnerNameAndRevision) {
  const auto plain = parse_repo_name("acme/Model-1.5_x");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->owner, "acme");
  EXPECT_EQ(plain->name, "Model-1.5_x");
  EXPECT_EQ(plain->revision, "main");
  EXPECT_EQ(parse_repo_name("a/b@refs/pr/12")->revision, "refs/pr/12");
}

TEST(RepoName, RefusesWhatCouldBeAPathOrAnOption) {
  for (const char* text :
       {"",       "a",        "/",       "a/",     "/b",    "a/b/c", "../b",   "a/..",       "a/b..c",
        "./b",    "a/-b",     "a/.b",    "a/b.",   "a b/c", "a/b@",  "a/b@..", "a/b@x/../y", "a/b@/x",
        "a/b@x/", "a/b@x//y", "a/b@x@y", "a%2f/b", "a/b?c", "a/b#c", "a/b\\c", "\xc3\xa4/b", "a/b@\x01"}) {
    EXPECT_FALSE(parse_repo_name(text).ok()) << text;
  }
  EXPECT_FALSE(parse_repo_name("a/" + std::string(200, 'b')).ok());
}

TEST(HubEndpoint, BuildsEncodedAddressesBelowItsBase) {
  const auto endpoint = Endpoint::make("http://mirror.test:81/hub/", " token\n");
  ASSERT_TRUE(endpoint.ok());
  EXPECT_EQ(endpoint->token(), "token");
  const RepoName name{"acme", "tiny", "refs/pr/1"};
  EXPECT_EQ(endpoint->revision_url(name).target, "/hub/api/models/acme/tiny/revision/refs%2Fpr%2F1");
  EXPECT_EQ(endpoint->tree_url(name, "abc").target, "/hub/api/models/acme/tiny/tree/abc?recursive=true");
  EXPECT_EQ(endpoint->file_url(name, "abc", "x y/\xc3\xa4%?#.bin").target,
            "/hub/acme/tiny/resolve/abc/x%20y/%C3%A4%25%3F%23.bin");
}

TEST(HubEndpoint, ComesFromTheEnvironmentUnlessGiven) {
  ::setenv("HF_ENDPOINT", "http://mirror.test", 1);
  ::setenv("HF_TOKEN", "secret", 1);
  EXPECT_EQ(Endpoint::from_environment()->base().host, "mirror.test");
  EXPECT_EQ(Endpoint::from_environment()->token(), "secret");
  EXPECT_EQ(Endpoint::from_environment("http://other.test", "")->base().host, "other.test");
  EXPECT_EQ(Endpoint::from_environment("http://other.test", "")->token(), "");
  ::setenv("HF_TOKEN", "two words", 1);
  const auto bad = Endpoint::from_environment();
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().message.find("words"), std::string::npos) << "shows the token";
  ::unsetenv("HF_ENDPOINT");
  ::unsetenv("HF_TOKEN");
  EXPECT_EQ("https://" + Endpoint::from_environment()->base().host, kDefaultEndpoint);
}

TEST(HubPaths, StayInTheirFolder) {
  for (const char* path : {"a", "a/b.safetensors", "a b", "..a", "a..", "\xc3\xa4"}) {
    EXPECT_TRUE(check_path(path).ok()) << path;
  }
  for (const char* path : {"", "/a", "a/", "a//b", "..", "a/../b", "./a", "a/.", "a\\b", "a\nb", "a\x7f"}) {
    EXPECT_FALSE(check_path(path).ok()) << path;
  }
  EXPECT_FALSE(check_path(std::string_view("a\0b", 3)).ok());
  EXPECT_FALSE(check_path(std::string(300, 'a')).ok());
}

TEST(HubPaths, NamesThatOneFolderCannotHoldAreRefused) {
  const auto check = [](std::vector<std::string> paths) {
    std::vector<RepoFile> files;
    for (std::string& path : paths) files.push_back({.path = std::move(path)});
    return check_names(files).ok();
  };
  EXPECT_TRUE(check({"a", "b", "c/a", "c/b", "d/a"}));
  EXPECT_FALSE(check({"a", "a"}));
  EXPECT_FALSE(check({"Config.json", "config.json"}));
  EXPECT_FALSE(check({"a", "a/b"}));
  EXPECT_FALSE(check({"c/a", "C/b"}));
  EXPECT_FALSE(check({"a", "a.part"}));
  EXPECT_FALSE(check({"a.part.ranges", "a"}));
}

TEST(HubPaths, LinkHeaders) {
  EXPECT_EQ(next_link("<http://a/b?c=1>; rel=\"next\""), "http://a/b?c=1");
  EXPECT_EQ(next_link("<x>; rel=\"prev\", <y>; rel=\"next\""), "y");
  for (const char* none : {"", "<", ">", "<x", "<x>", "<x>; rel=\"prev\"", "rel=\"next\"", "><;rel=next"}) {
    EXPECT_EQ(next_link(none), "") << none;
  }
}

}  // namespace
}  // namespace sluice::hub
