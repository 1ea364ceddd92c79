// Repositories that cannot be pulled: one error, and nothing left behind.
#include <fstream>

#include "pull/pull_fixture.h"

namespace sluice::pull {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class PullErrors : public test::PullFixture {
 protected:
  void fails(ErrorCode code, const std::string& part) {
    const auto got = pull();
    ASSERT_FALSE(got.ok());
    EXPECT_EQ(got.error().code, code) << got.error().message;
    EXPECT_THAT(got.error().message, HasSubstr(part));
    EXPECT_FALSE(fs::exists(target_)) << "nothing left behind";
  }
  void serve_index(const std::string& shard) {
    server_.add("model.safetensors.index.json", dump_json(Json{{"weight_map", {{"lm_head.weight", shard}}}}),
                false);
  }
};

TEST_F(PullErrors, NoConfig) {
  server_.add("model.safetensors", "weights");
  fails(ErrorCode::kNotFound, "config.json");
}

TEST_F(PullErrors, AnotherArchitecture) {
  server_.add("config.json", R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})", false);
  server_.add("model.safetensors", "weights");
  const auto got = pull();
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(got.error().message, HasSubstr("llama"));
  EXPECT_FALSE(fs::exists(target_));
  EXPECT_EQ(server_.served("model.safetensors"), 0U);
  server_.add("config.json", "{", false);
  fails(ErrorCode::kCorrupt, "config.json");
}

TEST_F(PullErrors, NoSuchRepositoryOrRevision) {
  server_.change = [](const test::HubRequest& request, test::HubReply& reply) {
    if (request.target.find("/revision/") != std::string::npos) {
      reply.status = 404;
      reply.body.clear();
    }
  };
  fails(ErrorCode::kNotFound, "acme/tiny");
}

TEST_F(PullErrors, GatedWithoutAToken) {
  server_.token = "secret";
  serve_model({}, 2);
  fails(ErrorCode::kInvalidArgument, "HF_TOKEN");
}

TEST_F(PullErrors, NoWeights) {
  server_.add("config.json", dump_json(test::tiny_config()), false);
  server_.add("model.gguf", "weights");
  fails(ErrorCode::kNotFound, "no weights");
}

TEST_F(PullErrors, AnIndexOfShardsThatAreNotThere) {
  server_.add("config.json", dump_json(test::tiny_config()), false);
  serve_index("model-00001-of-00001.safetensors");
  fails(ErrorCode::kNotFound, "model-00001-of-00001.safetensors is missing");
}

TEST_F(PullErrors, AnIndexThatNamesOtherFiles) {
  server_.add("config.json", dump_json(test::tiny_config()), false);
  serve_index("config.json");
  fails(ErrorCode::kUnsupported, "config.json");
  serve_index("../../config.safetensors");
  fails(ErrorCode::kInvalidArgument, "inside the folder");
}

TEST_F(PullErrors, TensorsThatAreNotThere) {
  fs::create_directories(source_);
  test::RandomModel model;
  model.config = test::tiny_config();
  write_random_model(source_, model);
  model.config["text_config"]["num_experts"] = 17;
  std::ofstream(source_ / "config.json") << dump_json(model.config);
  serve(source_);
  const auto got = pull();
  ASSERT_FALSE(got.ok());
  EXPECT_FALSE(fs::exists(target_));
  EXPECT_EQ(content_served("model.safetensors"), 0U);
}

TEST_F(PullErrors, APrecisionThatTheSourceCannotGive) {
  test::RandomModel model;
  model.form = test::ModelForm::kMlx;
  serve_model(model, 2);
  PullOptions some = options();
  some.pack.experts = {spec::Format::kQ8};
  const auto got = pull(some);
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(got.error().message, HasSubstr("8"));
  EXPECT_FALSE(fs::exists(target_));
}

}  // namespace
}  // namespace sluice::pull
