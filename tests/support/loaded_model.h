// A checkpoint or store opened and loaded on a backend, for tests of the model and above.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "backend/create.h"
#include "model/model.h"
#include "store/source.h"

namespace sluice::test {

struct LoadedModel {
  std::unique_ptr<backend::Backend> backend;
  std::unique_ptr<model::Model> model;
};

/// A checkpoint or a packed store on this backend; a failure fails the test and gives null.
inline std::unique_ptr<model::Model> load_model_on(backend::Backend& backend,
                                                   const std::filesystem::path& folder,
                                                   const model::ModelOptions& options = {}) {
  auto source = store::open_source(folder);
  EXPECT_TRUE(source.ok()) << (source.ok() ? "" : source.error().message);
  if (!source.ok()) return nullptr;
  auto model = model::Model::load(std::move(source).value(), backend, options);
  EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message);
  return model.ok() ? std::move(model).value() : nullptr;
}

/// The same on a backend of its own; "cpu_exact" is the CPU's with --exact.
inline LoadedModel load_model(const std::filesystem::path& folder, const std::string& backend = "cpu",
                              const model::ModelOptions& options = {}, int threads = 1) {
  LoadedModel loaded;
  const bool exact = backend == "cpu_exact";
  auto made = backend::create_backend(exact ? "cpu" : backend, {threads, 0, exact});
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  if (!made.ok()) return loaded;
  loaded.backend = std::move(made).value();
  loaded.model = load_model_on(*loaded.backend, folder, options);
  return loaded;
}

/// |a - b| / |b|, in double.
inline double relative_error(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0;
  double size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

}  // namespace sluice::test
