// The options of pack and pull that say what a store holds.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "pack/options.h"

namespace sluice::cli {

struct PackChoices {
  std::string experts;  // as given: "4,3,2", "8" or "keep"
  std::string method = "refit";
  std::string dense = "8";
  std::string ngram = "4";
  std::string importance;
  int jobs = 0;
  bool force = false;

  void add_to(CLI::App& command);
  [[nodiscard]] Result<pack::PackOptions> to_options() const;
};

/// "4", "3,2": precisions of experts. Errors name `option`.
Result<std::vector<spec::Format>> parse_precisions(const std::string& text,
                                                   std::string_view option = "--experts");

/// What --experts of pack takes, for CLI11.
const CLI::Validator& precisions();

/// "4", "8" or "bf16": what --dense says.
Result<store::DenseBits> parse_dense(const std::string& text);

/// MODEL.sluice beside the folder MODEL.
std::filesystem::path default_target(const std::filesystem::path& source);

}  // namespace sluice::cli
