// What the tests of packing share: sources, stores, and comparing stores byte for byte.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "pack/pack.h"
#include "store/source.h"
#include "support/random_model.h"

namespace sluice::test {

namespace fs = std::filesystem;

/// Names and contents of all files in a folder, hidden ones too.
inline std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[fs::relative(entry.path(), folder).string()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

/// A small BF16 checkpoint: every kind of layer, several shards, an n-gram table.
inline void write_source(const fs::path& folder, ModelForm form = ModelForm::kReleased,
                         std::uint64_t seed = 1) {
  fs::create_directories(folder);
  RandomModel model;
  model.config = tiny_config();
  model.form = form;
  model.seed = seed;
  model.files = 3;
  write_random_model(folder, model);
}

inline std::unique_ptr<store::WeightSource> open_folder(const fs::path& folder) {
  auto source = store::open_source(folder);
  EXPECT_TRUE(source.ok()) << (source.ok() ? "" : source.error().message);
  return source.ok() ? std::move(source).value() : nullptr;
}

/// All three quantised precisions.
inline pack::PackOptions all_tiers() {
  pack::PackOptions options;
  options.experts = {spec::Format::kQ4, spec::Format::kQ3, spec::Format::kQ2};
  options.jobs = 1;
  return options;
}

inline Result<pack::PackReport> pack_folder(const fs::path& source, const fs::path& target,
                                            const pack::PackOptions& options = all_tiers()) {
  SLUICE_ASSIGN(const auto opened, store::open_source(source));
  return pack::pack(*opened, target, options);
}

}  // namespace sluice::test
