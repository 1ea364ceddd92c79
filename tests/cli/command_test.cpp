// The sluice program as a user meets it: output, errors in one line, exit codes.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "base/json.h"
#include "support/edit_model.h"
#include "support/fixtures.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Command : public testing::Test {
 protected:
  Outcome sluice(const std::vector<std::string>& arguments, const std::string& input = "") {
    std::ofstream(folder_ / "in") << input;
    std::string line = quoted(SLUICE_BINARY);
    for (const auto& argument : arguments) line += " " + quoted(argument);
    line += " <" + quoted((folder_ / "in").string()) + " >" + quoted((folder_ / "out").string()) + " 2>" +
            quoted((folder_ / "err").string());
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder_ / "out"),
            read_file(folder_ / "err")};
  }
  // Exit 1 and one line that names the program and contains `part`.
  void fails(const std::vector<std::string>& arguments, const std::string& part) {
    const auto r = sluice(arguments);
    EXPECT_EQ(r.code, 1) << r.out << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_EQ(r.err.rfind("sluice: ", 0), 0U) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  }
  test::TempFolder folder_;
  const std::string demo_ = std::string(SLUICE_MODELS) + "/demo";
  const std::string tiny_ = std::string(SLUICE_TEST_DATA) + "/model/tiny4";
};

TEST_F(Command, RunPrintsTheAnswerAloneWhenPiped) {
  const auto r = sluice({"run", demo_, "Define glacier.", "--temperature", "0"});
  EXPECT_EQ(r.code, 0);
  EXPECT_EQ(r.out, "Glacier (noun): a slowly moving mass of ice.\n");
  EXPECT_EQ(r.err, "");
  const auto shown = sluice({"run", demo_, "Define glacier.", "--temperature", "0", "--show-thinking"});
  EXPECT_NE(shown.out.find("\n\nGlacier (noun): a slowly moving mass of ice.\n"), std::string::npos)
      << shown.out;
}

TEST_F(Command, RunAsJsonHoldsTextTokensAndMeasurements) {
  const auto r = sluice({"run", demo_, "Define glacier.", "--temperature", "0", "--no-think", "--json"});
  EXPECT_EQ(r.code, 0);
  const auto json = parse_json(r.out, "out");
  ASSERT_TRUE(json.ok()) << r.out;
  EXPECT_EQ((*json)["answer"], "Glacier (noun): a slowly moving mass of ice.");
  EXPECT_EQ((*json)["stats"]["stop_reason"], "stop");
  EXPECT_EQ((*json)["stats"]["generated_tokens"], (*json)["tokens"].size());
}

TEST_F(Command, TheSameTextOnAnyNumberOfThreads) {
  const std::vector<std::string> base{"run", demo_,   "Tell me about ice.", "--seed", "7", "--max-tokens",
                                      "60",  "--json"};
  std::string first;
  for (const char* threads : {"1", "2", "5"}) {
    auto arguments = base;
    arguments.insert(arguments.end(), {"--threads", threads});
    const auto tokens = dump_json(parse_json(sluice(arguments).out, "out").value()["tokens"]);
    if (first.empty()) first = tokens;
    EXPECT_EQ(tokens, first) << threads;
  }
}

TEST_F(Command, KeysAndValuesOfEightBitsTakeLessAndSayTheSameHere) {
  const auto context = [&](const char* format) {
    const auto plan = parse_json(sluice({"plan", demo_, "--json", "--kv", format}).out, "out");
    return plan.ok() ? (*plan)["parts"]["context"].get<std::int64_t>() : 0;
  };
  EXPECT_GT(context("q8"), 0);
  EXPECT_LT(context("q8"), context("f32") / 2);
  const auto answer = sluice({"run", demo_, "Define glacier.", "--temperature", "0", "--kv", "q8"});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.out, "Glacier (noun): a slowly moving mass of ice.\n");
  EXPECT_EQ(sluice({"run", demo_, "x", "--kv", "q4"}).code, 2);
}

TEST_F(Command, ModelsOpenThroughLinksAndPathsWithSpacesAndLetters) {
  const auto path = folder_ / "mein modell ä日";
  fs::create_directory_symlink(demo_, path);
  EXPECT_EQ(sluice({"run", path.string(), "Define glacier.", "--temperature", "0"}).out,
            "Glacier (noun): a slowly moving mass of ice.\n");
}

TEST_F(Command, ChatAnswersLinesFromAPipe) {
  const auto r = sluice({"chat", demo_, "--no-think", "--temperature", "0"},
                        "Define glacier.\n\n/new\nDefine ship.\n/exit\nno\n");
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.out.rfind("Glacier (noun): a slowly moving mass of ice.\nShip (noun):", 0), 0U) << r.out;
}

TEST_F(Command, TokenizeAndDetokenizeAreInverse) {
  const auto ids = sluice({"tokenize", demo_, "naïve 👍 <|im_end|>", "--json"});
  const auto json = parse_json(ids.out, "out").value();
  const auto text = sluice({"detokenize", demo_, dump_json(json["ids"])});
  EXPECT_EQ(text.out, "naïve 👍 <|im_end|>\n");
  fails({"detokenize", demo_, "1,99999"}, "token 99999");
}

TEST_F(Command, RenderShowsThePromptOrTheTemplatesOwnError) {
  std::ofstream(folder_ / "m.json") << R"([{"role": "user", "content": "Hi"}])";
  const auto r = sluice({"render", demo_, (folder_ / "m.json").string(), "--options",
                         R"({"enable_thinking": false, "add_generation_prompt": true})"});
  EXPECT_EQ(r.out, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  std::ofstream(folder_ / "m.json") << R"([{"role": "developer", "content": "Hi"}])";
  fails({"render", demo_, (folder_ / "m.json").string()}, "no user message");
  std::ofstream(folder_ / "m.json") << "{";
  fails({"render", demo_, (folder_ / "m.json").string()}, "m.json");
}

TEST_F(Command, LogitsWritesWhatIsAskedFor) {
  const auto out = (folder_ / "l.safetensors").string();
  ASSERT_EQ(sluice({"logits", tiny_, "--ids", "1,2,3,4", "--out", out, "--wide", "--mtp"}).code, 0);
  const auto written = test::Fixture::load(out);
  EXPECT_EQ(written.shape("logits"), (std::vector<std::int64_t>{4, 512}));
  EXPECT_EQ(written.shape("wide4"), (std::vector<std::int64_t>{4, 1024}));
  EXPECT_EQ(written.shape("mtp_logits"), (std::vector<std::int64_t>{3, 512}));
  std::ofstream(folder_ / "ids.json") << "[1, 2, 3, 4]";
  const auto again = (folder_ / "again.safetensors").string();
  ASSERT_EQ(
      sluice({"logits", tiny_, "--ids", (folder_ / "ids.json").string(), "--out", again, "--rows", "3"}).code,
      0);
  EXPECT_EQ(test::Fixture::load(again).floats("logits"), written.floats("logits"));
}

TEST_F(Command, LogitsReplacesOnlyRegularFiles) {
  const auto pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fails({"logits", tiny_, "--ids", "1", "--out", pipe.string()}, "no regular file");
  EXPECT_TRUE(fs::is_fifo(pipe));
  std::ofstream(folder_ / "target") << "old";
  fs::create_symlink(folder_ / "target", folder_ / "link");
  EXPECT_EQ(sluice({"logits", tiny_, "--ids", "1", "--out", (folder_ / "link").string()}).code, 0);
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_GT(fs::file_size(folder_ / "target"), 1000U);
}

TEST_F(Command, ErrorsStayOneLineAndCannotSteerTheTerminal) {
  const auto r = sluice({"logits", tiny_, "--ids", "1,\x1b[31mred\x07", "--out", (folder_ / "x").string()});
  EXPECT_EQ(r.code, 1);
  EXPECT_EQ(r.err.find('\x1b'), std::string::npos);
  EXPECT_EQ(r.err.find('\x07'), std::string::npos);
}

TEST_F(Command, ClosedStandardStreamsAreNotMistakenForTheModelsFiles) {
  const int status =
      std::system((quoted(SLUICE_BINARY) + " chat " + quoted(demo_) + " <&- >&- 2>&-").c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(Command, LogitsRefusesBadIds) {
  const auto out = (folder_ / "l.safetensors").string();
  fails({"logits", tiny_, "--ids", "1,x", "--out", out}, "'x' at place 1");
  fails({"logits", tiny_, "--ids", "1,512", "--out", out}, "token 512");
  fails({"logits", tiny_, "--ids", "-5", "--out", out}, "-5");
  fails({"logits", tiny_, "--ids", "[]", "--out", out}, "none found");
  fails({"logits", tiny_, "--ids", "1", "--out", (folder_ / "no" / "such" / "x").string()}, "no");
  EXPECT_FALSE(fs::exists(out));
}

TEST_F(Command, KernelsFailsForABrokenOrUnknownFile) {
  const auto golden = fs::path(SLUICE_TEST_DATA) / "kernels";
  const auto all = sluice({"kernels", "--golden", golden.string(), "--backend", "cpu"});
  EXPECT_EQ(all.code, 0) << all.out;
  const auto some = folder_ / "golden";
  fs::create_directory(some);
  fails({"kernels", "--golden", some.string()}, "no .safetensors file");
  fs::copy_file(golden / "inject.safetensors", some / "mystery.safetensors");
  EXPECT_EQ(sluice({"kernels", "--golden", some.string()}).code, 1);
  fs::remove(some / "mystery.safetensors");
  fs::copy_file(golden / "inject.safetensors", some / "inject.safetensors");
  EXPECT_EQ(sluice({"kernels", "--golden", some.string()}).code, 0);
  test::edit_tensors(some / "inject.safetensors", [](test::TensorMap& tensors) {
    for (auto& byte : tensors.at("out_hyper").bytes) byte = std::byte{0x3f};
  });
  EXPECT_EQ(sluice({"kernels", "--golden", some.string()}).code, 1);
}

TEST_F(Command, InspectTellsWhatAModelIs) {
  const auto json = parse_json(sluice({"inspect", demo_, "--json"}).out, "out").value();
  EXPECT_EQ(json["form"], "mlx-4bit");
  EXPECT_EQ(json["geometry"]["layers"], 8);
  EXPECT_NEAR(json["parameters"]["total"].get<double>(), 28.1e6, 0.1e6);
  EXPECT_NE(sluice({"inspect", demo_}).out.find("28.1M"), std::string::npos);
}

TEST_F(Command, PlanSaysWhetherAModelFitsWithoutItsWeights) {
  const auto r = sluice({"plan", "Qwen3.8-Flash-Next", "--memory", "32G"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_NE(r.out.find("2764800 B in a slot of 2768896 B"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("fits with experts read from disk"), std::string::npos) << r.out;
  const auto small = sluice({"plan", "qwen3.8-flash-next", "--memory", "4G"});
  EXPECT_EQ(small.code, 1);
  EXPECT_EQ(small.err, "");
  EXPECT_NE(small.out.find("does not fit: "), std::string::npos) << small.out;
  EXPECT_EQ(sluice({"plan", demo_}).code, 0);
  EXPECT_EQ(sluice({"plan", demo_ + "/config.json", "--memory", "1M"}).code, 1);
  fails({"plan", (folder_ / "none").string()}, "no such folder");
  fails({"plan", folder_.path().string()}, "config.json");
  fails({"plan", "demo", "--ctx", "9000"}, "8192");
  fails({"plan", "demo", "--pool", "1K"}, "pool of 1.00 KiB");
  fails({"plan", "demo", "--device-memory", "8G"}, "backend cpu has no memory of its own");
}

TEST_F(Command, MakeModelWritesStoresAndCheckpointsThatLoad) {
  const auto store = (folder_ / "store").string(), checkpoint = (folder_ / "checkpoint").string();
  const auto made = sluice({"make-model", "tiny", store, "--layers", "2", "--experts", "8", "--ngram-base",
                            "101", "--seed", "7", "--precision", "4,2", "--json"});
  ASSERT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(parse_json(made.out, "out").value()["form"], "store");
  EXPECT_EQ(sluice({"verify", store}).code, 0);
  EXPECT_NE(sluice({"make-model", "tiny", store, "--layers", "2", "--experts", "8", "--ngram-base", "101",
                    "--seed", "7", "--precision", "2,4"})
                .out.find("made already"),
            std::string::npos);
  fails({"make-model", "tiny", store}, "holds another packed store; --force replaces it");
  EXPECT_EQ(sluice({"make-model", "tiny", store, "--force"}).code, 0);
  ASSERT_EQ(sluice({"make-model", "tiny", checkpoint, "--checkpoint"}).code, 0);
  const auto a = (folder_ / "a.safetensors").string(), b = (folder_ / "b.safetensors").string();
  ASSERT_EQ(sluice({"logits", store, "--ids", "1,2,3", "--out", a}).code, 0);
  ASSERT_EQ(sluice({"logits", checkpoint, "--ids", "1,2,3", "--out", b}).code, 0);
  EXPECT_EQ(test::Fixture::load(a).floats("logits"), test::Fixture::load(b).floats("logits"));
  fails({"make-model", "big", (folder_ / "x").string()}, "flash-next, demo, tiny");
  fails({"make-model", "tiny", (folder_ / "x").string(), "--experts", "1"}, "needed at least 4");
  fails({"make-model", "tiny", (folder_ / "x").string(), "--precision", "8"}, "4, 3 and 2 bits needed");
  std::ofstream(folder_ / "notes") << "mine";
  fails({"make-model", "tiny", folder_.path().string()}, "a new or empty folder needed");
  EXPECT_EQ(sluice({"make-model", "tiny", "x", "--checkpoint", "--precision", "4"}).code, 2);
}

TEST_F(Command, PlanAsJsonCountsBytes) {
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "flash-next", "--json", "--memory", "40G"});
    return parse_json(sluice(more).out, "out").value();
  };
  const Json json = plan({"--experts", "3", "--sessions", "2", "--ctx", "1000", "--pool", "20GB"});
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["experts"]["slot_bytes"], 2162688);
  EXPECT_EQ(json["context"]["sessions"], 2);
  EXPECT_EQ(json["context"]["tokens"], 1000);
  EXPECT_EQ(json["pool"]["slots"], 20000000000 / 2162688);
  EXPECT_EQ(json["memory"]["usable"], std::int64_t{40} << 30);
  EXPECT_LT(plan({"--dense", "4"})["parts"]["dense_weights"],
            plan({"--dense", "bf16"})["parts"]["dense_weights"]);
}

TEST_F(Command, ModelsThatDoNotFitAreRefused) {
  fails({"run", demo_, "Define glacier.", "--memory", "60M"}, "of memory needed, 60.0 MiB given");
  fails({"logits", tiny_, "--ids", "1", "--out", (folder_ / "x").string(), "--memory", "1M"},
        "of memory needed, 1.00 MiB given");
  EXPECT_EQ(sluice({"run", demo_, "Define glacier.", "--ctx", "256", "--memory", "80M"}).code, 0);
}

TEST_F(Command, EvalMeasuresWhatTheSuiteHolds) {
  std::ofstream(folder_ / "suite.json")
      << R"({"recall_top": [{"word": "glacier", "answer": "Glacier (noun): a slowly moving mass of ice."}, {"word": "ship", "answer": "x"}]})";
  const auto json =
      parse_json(sluice({"eval", demo_, "--suite", (folder_ / "suite.json").string(), "--json"}).out, "out");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ((*json)["recall_top"], 0.5);
}

TEST_F(Command, ModelsThatAreNoneAreOneLineErrors) {
  fails({"run", (folder_ / "none").string(), "x"}, "none");
  fails({"run", folder_.path().string(), "x"}, "config.json");
  fails({"run", demo_ + "/config.json", "x"}, "config.json");
  fails({"run", demo_, ""}, "empty prompt");
  fails({"run", demo_, "x", "--temperature", "-1"}, "temperature");
  fails({"run", demo_, "x", "--ctx", "100000"}, "8192");
  fails({"run", demo_, "What is a glacier made of?", "--ctx", "10"}, "context holds 10");
}

TEST_F(Command, ATruncatedModelIsRefusedWithItsName) {
  const auto copy = folder_ / "cut";
  fs::copy(demo_, copy);
  const auto weights = copy / "model.safetensors";
  fs::permissions(weights, fs::perms::owner_write, fs::perm_options::add);
  fs::resize_file(weights, fs::file_size(weights) - 1);
  fails({"run", copy.string(), "x"}, "model.safetensors");
}

TEST_F(Command, OutputThatCannotBeWrittenIsAnError) {
  for (const std::string arguments : {"tokenize %s hello", "inspect %s", "run %s 'Define glacier.' --json"}) {
    const std::string line = std::string(SLUICE_BINARY) + " " +
                             std::string(arguments).replace(arguments.find("%s"), 2, quoted(demo_));
    const int status = std::system((line + " >/dev/full 2>" + quoted((folder_ / "err").string())).c_str());
    ASSERT_TRUE(WIFEXITED(status)) << line;
    EXPECT_EQ(WEXITSTATUS(status), 1) << line;
    EXPECT_EQ(read_file(folder_ / "err").rfind("sluice: ", 0), 0U) << line;
  }
}

// Sanitizers reserve more address space than the limit of this test leaves.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(Command, MoreThreadsThanTheSystemGivesIsAnErrorNotACrash) {
  const std::string line = "ulimit -v 2000000; " + quoted(SLUICE_BINARY) + " run " + quoted(demo_) +
                           " x --threads 1024 2>" + quoted((folder_ / "err").string()) + " >/dev/null";
  const int status = std::system(line.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_NE(read_file(folder_ / "err").find("1024 threads"), std::string::npos);
}
#endif

TEST_F(Command, WrongUsageIsExitTwo) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{},
        {"frobnicate"},
        {"run"},
        {"run", demo_},
        {"run", demo_, "x", "--top-k", "many"},
        {"run", demo_, "x", "--threads", "0"},
        {"run", demo_, "x", "--backend", "abacus"},
        {"run", demo_, "x", "--max-tokens", "0"},
        {"run", demo_, "x", "--memory", "lots"},
        {"plan"},
        {"plan", "demo", "--memory", "3Q"},
        {"plan", "demo", "--memory", "0"},
        {"plan", "demo", "--experts", "5"},
        {"plan", "demo", "--experts", "4,"},
        {"pack", tiny_, "--experts", "5"},
        {"make-model", "tiny", "x", "--precision", "5"},
        {"plan", "demo", "--dense", "3"},
        {"plan", "demo", "--sessions", "0"},
        {"logits", tiny_, "--ids", "1"},
        {"logits", tiny_, "--ids", "1", "--out", "x", "--rows", "9"},
        {"logits", tiny_, "--ids", "1", "--out", "x", "--rows", "2", "--chunk", "2"}}) {
    const auto r = sluice(arguments);
    EXPECT_EQ(r.code, 2);
    EXPECT_EQ(r.out, "");
    EXPECT_EQ(r.err.rfind("sluice: ", 0), 0U) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    EXPECT_NE(r.err.find("--help tells more)"), std::string::npos) << r.err;
  }
  EXPECT_EQ(sluice({"frobnicate"}).err, "sluice: no such command: frobnicate (sluice --help tells more)\n");
  EXPECT_NE(sluice({"pack", tiny_, "--experts", "4,5"}).err.find("\"4,5\" found; 8, 4, 3 and 2"),
            std::string::npos);
}

TEST_F(Command, PlanOfAStoreIsWhatRunSays) {
  const auto store = (folder_ / "store").string();
  ASSERT_EQ(sluice({"pack", demo_, "-o", store, "--experts", "4,2"}).code, 0);
  const auto plan = sluice({"plan", store, "--experts", "2"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_NE(plan.out.find("experts of 2 bits"), std::string::npos) << plan.out;
  EXPECT_NE(plan.out.find("\ndisk\n  packed store"), std::string::npos) << plan.out;
  EXPECT_EQ(plan.out.find("checkpoint"), std::string::npos) << plan.out;
  const auto none = sluice({"plan", store, "--experts", "3"});
  EXPECT_EQ(none.code, 1);
  EXPECT_EQ(none.err, sluice({"run", store, "x", "--experts", "3"}).err);
  fails({"plan", store, "--experts", "keep"}, "one of the precisions needed");
  fails({"plan", store, "--dense", "4"}, "this is a packed store");
  EXPECT_EQ(sluice({"plan", demo_, "--experts", "keep"}).code, 0);
  EXPECT_EQ(sluice({"plan", demo_, "--no-pack", "--experts", "4"}).code, 0);
  const auto larger = sluice({"plan", demo_, "--experts", "8"});
  EXPECT_EQ(larger.code, 1);
  EXPECT_EQ(larger.err, sluice({"pack", demo_, "-o", (folder_ / "no").string(), "--experts", "8"}).err);
  // The bytes that pack reports.
  const auto bytes = parse_json(sluice({"plan", demo_, "--experts", "4,2", "--json"}).out, "out").value();
  const auto packed =
      parse_json(sluice({"pack", demo_, "-o", store, "--experts", "4,2", "--json"}).out, "out");
  EXPECT_EQ(bytes["disk"]["store"], packed.value()["bytes"]);
}

TEST_F(Command, WhatIsRefusedIsRefusedBeforeACheckpointIsPacked) {
  const auto stores = (folder_ / "stores").string();
  const auto refused = [&](const std::vector<std::string>& more, const std::string& part) {
    std::vector<std::string> arguments{"run", demo_, "x", "--store-dir", stores};
    arguments.insert(arguments.end(), more.begin(), more.end());
    fails(arguments, part);
    EXPECT_FALSE(fs::exists(stores));
  };
  refused({"--experts", "2"}, "experts of 2 bits asked for, it has 4");
  refused({"--ctx", "9000"}, "1 to 8192");
  refused({"--memory", "20M"}, "of memory needed, 20.0 MiB given");
  refused({"--temperature", "-1"}, "temperature -1");
  refused({"--top-p", "2"}, "top-p 2");
}

TEST_F(Command, ADamagedStoreOfFirstUseSaysHowToMendIt) {
  const auto stores = (folder_ / "stores").string();
  const std::vector<std::string> run{"run",         demo_, "Define glacier.", "--max-tokens", "1",
                                     "--store-dir", stores};
  ASSERT_EQ(sluice(run).code, 0);
  const fs::path store = fs::directory_iterator(stores)->path();
  {
    std::fstream file(store / "dense.bin", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1000);
    file.write("damaged", 7);
  }
  fails(run, "remove the folder " + store.string());
  fs::remove(store / "dense.bin");
  fails(run, "remove the folder " + store.string());
  fs::remove_all(store);
  EXPECT_EQ(sluice(run).code, 0);
}

TEST_F(Command, VerifyNamesWhatIsNoStore) {
  fails({"verify", demo_}, demo_ + ": not a packed store: no manifest.json");
  fails({"verify", (folder_ / "none").string()}, "no such folder");
}

TEST_F(Command, NothingInAModelSteersTheTerminal) {
  const fs::path model = folder_ / "model";
  fs::copy(tiny_, model, fs::copy_options::recursive);
  Json config = parse_json(read_file(model / "config.json"), "config").value();
  config["architectures"] = {"evil\x1b]0;title\x07\u009b31m"};
  std::ofstream(model / "config.json") << dump_json(config);
  const auto inspected = sluice({"inspect", model.string()});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_NE(inspected.out.find("evil ]0;title  31m"), std::string::npos) << inspected.out;
}

TEST_F(Command, HelpCarriesAnExample) {
  EXPECT_EQ(sluice({"--help"}).code, 0);
  for (const char* command :
       {"run", "chat", "tokenize", "detokenize", "render", "logits", "kernels", "inspect", "eval", "plan"}) {
    const auto r = sluice({command, "--help"});
    EXPECT_EQ(r.code, 0);
    EXPECT_NE(r.out.find("Example:\n  sluice " + std::string(command)), std::string::npos) << r.out;
  }
}

}  // namespace
}  // namespace sluice
