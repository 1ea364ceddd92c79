#include "pack_options.h"

#include <fmt/format.h>

#include <system_error>

namespace sluice::cli {

const CLI::Validator& precisions() {
  static const CLI::Validator kPrecisions(
      [](const std::string& text) {
        return text == "keep" || parse_precisions(text).ok()
                   ? std::string()
                   : fmt::format("\"{}\" found; 8, 4, 3 and 2 with commas needed, or keep", text);
      },
      "");
  return kPrecisions;
}

void PackChoices::add_to(CLI::App& command) {
  command
      .add_option("--experts", experts,
                  "bits of the routed experts, several with commas: 8, 4, 3, 2; or keep (default: 4)")
      ->check(precisions());
  command
      .add_option("--tier-method", method,
                  "how 3 and 2 bits come about: refit, or truncate: drop bits of the 4-bit codes")
      ->check(CLI::IsMember({"refit", "truncate"}))
      ->capture_default_str();
  command.add_option("--dense", dense, "bits of the other matrices of BF16 and FP8 sources: 4, 8 or bf16")
      ->check(CLI::IsMember({"4", "8", "bf16"}))
      ->capture_default_str();
  command.add_option("--ngram", ngram, "bits of the n-gram rows of BF16 and FP8 sources: 4 or keep")
      ->check(CLI::IsMember({"4", "keep"}))
      ->capture_default_str();
  command.add_option("--importance", importance,
                     "weight the experts' errors with statistics of eval --collect-importance");
  command.add_option("--jobs", jobs, "threads (default: one for each physical core)")
      ->check(CLI::Range(1, 1024));
  command.add_flag("--force", force, "replace a store that is there");
}

Result<std::vector<spec::Format>> parse_precisions(const std::string& text, std::string_view option) {
  std::vector<spec::Format> formats;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    const std::string bits = text.substr(at, end - at);
    at = end + 1;
    if (bits == "8") {
      formats.push_back(spec::Format::kQ8);
    } else if (bits == "4") {
      formats.push_back(spec::Format::kQ4);
    } else if (bits == "3") {
      formats.push_back(spec::Format::kQ3);
    } else if (bits == "2") {
      formats.push_back(spec::Format::kQ2);
    } else {
      return make_error(ErrorCode::kInvalidArgument, "{} {}: \"{}\" found; 8, 4, 3 and 2 with commas needed",
                        option, text, bits);
    }
  }
  return formats;
}

Result<store::DenseBits> parse_dense(const std::string& text) {
  if (text == "4") return store::DenseBits::kQ4;
  if (text == "8") return store::DenseBits::kQ8;
  if (text == "bf16") return store::DenseBits::kSource;
  return make_error(ErrorCode::kInvalidArgument, "--dense {}: 4, 8 or bf16 needed", text);
}

Result<pack::PackOptions> PackChoices::to_options() const {
  pack::PackOptions options;
  options.keep_experts = experts == "keep";
  if (!experts.empty() && !options.keep_experts) {
    SLUICE_ASSIGN(options.experts, parse_precisions(experts));
  }
  options.method = method == "truncate" ? pack::TierMethod::kTruncate : pack::TierMethod::kRefit;
  if (!dense.empty()) {
    SLUICE_ASSIGN(options.dense, parse_dense(dense));
  }
  options.keep_ngram = ngram == "keep";
  options.importance = importance;
  options.jobs = jobs;
  options.force = force;
  return options;
}

std::filesystem::path default_target(const std::filesystem::path& source) {
  std::error_code ignored;
  auto path = std::filesystem::weakly_canonical(source, ignored);
  if (!path.has_filename()) path = path.parent_path();
  path += ".sluice";
  return path;
}

}  // namespace sluice::cli
