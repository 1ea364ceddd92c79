// Runs the golden files of the operations (operations.md) on a backend.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "base/result.h"

namespace sluice::backend {

/// One output of one golden file, compared.
struct GoldenResult {
  std::string file;       // file name without its directory
  std::string operation;  // the Backend operation that produced the output; empty if none is known
  double error = 0;       // relative L2, or the number of differing elements where `exact`
  double tolerance = 0;
  bool exact = false;
  bool pass = false;
  std::string note;  // the output's name, or what is wrong with the file
};

/// Runs every *.safetensors of `dir` in name order. A file that is malformed, or whose operation nobody
/// knows, gives a failing result with a note; only a directory that cannot be read is an error.
Result<std::vector<GoldenResult>> run_golden(const std::filesystem::path& dir, Backend& backend);

}  // namespace sluice::backend
