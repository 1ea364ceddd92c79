#include <algorithm>
#include <array>
#include <system_error>

#include "backend/golden/golden.h"
#include "backend/golden/operations.h"

namespace sluice::backend {

namespace {

struct Kind {
  std::string_view prefix;  // of the file's name
  void (*run)(golden::GoldenCase&);
};

constexpr std::array kKinds{
    Kind{"bf16_matvec", golden::bf16_matvec},
    Kind{"delta_gate_norm", golden::delta_gate_norm},
    Kind{"expert_qmm", golden::low_bit_matmul},
    Kind{"gather_rows", golden::gather_rows},
    Kind{"group_norm", golden::group_norm},
    Kind{"hc_mix", golden::hc_mix},
    Kind{"inject", golden::inject},
    Kind{"moe", golden::experts},
    Kind{"mtp_fold", golden::mtp_fold},
    Kind{"norm_prep", golden::norm_prep},
    Kind{"ple_conv", golden::ple_conv},
    Kind{"ple_gate", golden::ple_gate},
    Kind{"qmv_silu", golden::qmv_silu},
    Kind{"qmv_small", golden::qmv_small},
    Kind{"qsa_index", golden::index},
    Kind{"replicate", golden::replicate},
    Kind{"scatter_add_rows", golden::scatter_add_rows},
    Kind{"shared_add_rows", golden::shared_add_rows},
    Kind{"silu_rows", golden::silu_rows},
    Kind{"softmax_selected", golden::softmax_selected},
    Kind{"sparse_attention_q8", golden::attention_q8},
    Kind{"topk_softmax", golden::router},
};

/// The name is a kind, or a kind and an underscore and a variant.
const Kind* kind_of(std::string_view stem) {
  for (const Kind& kind : kKinds) {
    if (!stem.starts_with(kind.prefix)) continue;
    if (stem.size() == kind.prefix.size() || stem[kind.prefix.size()] == '_') return &kind;
  }
  return nullptr;
}

void run_file(const std::filesystem::path& path, Backend& backend, std::vector<GoldenResult>& results) {
  const std::string name = path.filename().string();
  const auto fail = [&](std::string note) {
    results.push_back({name, "", 0, 0, false, false, std::move(note)});
  };
  const Kind* kind = kind_of(path.stem().string());
  if (kind == nullptr) return fail("no operation has golden files of this name");
  const auto file = store::SafetensorsFile::open(path);
  if (!file.ok()) return fail(file.error().message);
  const std::size_t before = results.size();
  golden::GoldenCase c(name, **file, backend, results);
  kind->run(c);
  if (c.ok() && results.size() == before) fail("nothing was compared");
}

}  // namespace

Result<std::vector<GoldenResult>> run_golden(const std::filesystem::path& dir, Backend& backend) {
  std::error_code error;
  std::vector<std::filesystem::path> paths;
  std::filesystem::directory_iterator entry(dir, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == ".safetensors") paths.push_back(entry->path());
  }
  if (error) return make_error(ErrorCode::kIo, "{}: {}", dir.string(), error.message());
  if (paths.empty()) return make_error(ErrorCode::kNotFound, "{}: no .safetensors file", dir.string());
  std::sort(paths.begin(), paths.end());
  std::vector<GoldenResult> results;
  for (const auto& path : paths) run_file(path, backend, results);
  return results;
}

}  // namespace sluice::backend
