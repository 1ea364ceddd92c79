// sluice inspect: what a checkpoint holds.
#include <fmt/format.h>

#include <map>
#include <memory>

#include "base/json.h"
#include "base/units.h"
#include "command.h"
#include "store/packed_store.h"
#include "store/source.h"
#include "terminal.h"
#include "text/printable.h"

namespace sluice::cli {
namespace {

struct InspectOptions {
  std::string folder;
  bool json = false;
};

std::string format_name(spec::Format format) {
  switch (format) {
    case spec::Format::kF32:
      return "float32";
    case spec::Format::kBf16:
      return "bfloat16";
    case spec::Format::kQ8:
      return "8 bits";
    case spec::Format::kQ4:
      return "4 bits";
    case spec::Format::kQ3:
      return "3 bits";
    case spec::Format::kQ2:
      return "2 bits";
  }
  return "?";
}

/// What only a packed store can tell.
void describe(const store::PackedStore& packed, Json& out) {
  const store::Manifest& manifest = packed.manifest();
  out["source"] = {{"name", manifest.source_name}, {"form", manifest.source_form}};
  if (!manifest.source_revision.empty()) out["source"]["revision"] = manifest.source_revision;
  Json tiers = Json::array();
  for (const store::StoredTier& tier : manifest.tiers) {
    tiers.push_back({{"format", format_name(tier.layout.format)},
                     {"method", tier.method},
                     {"group", tier.layout.geometry.group},
                     {"record_bytes", tier.layout.bytes()},
                     {"slot_bytes", store::slot_bytes(tier.layout)}});
  }
  out["tiers"] = std::move(tiers);
  std::map<std::string, std::uint64_t> dense;
  for (const store::StoredDense& tensor : manifest.dense) {
    for (const store::FilePart& part : tensor.parts) dense[format_name(tensor.format)] += part.bytes;
  }
  out["dense_bytes"] = dense;
}

Json describe(const store::WeightSource& source) {
  const auto& c = source.config();
  const auto p = source.parameters();
  const auto layout = source.record_layout();
  std::int64_t full = 0;
  for (const auto kind : c.layers) full += kind == spec::LayerKind::kFull ? 1 : 0;
  Json out;
  out["architecture"] = c.architecture.empty() ? c.model_type : c.architecture;
  out["form"] = source.form();
  out["geometry"] = {{"layers", c.layer_count()},
                     {"full_attention_layers", full},
                     {"hidden", c.hidden},
                     {"streams", c.streams},
                     {"vocabulary", c.vocab},
                     {"context", c.max_positions},
                     {"heads", c.heads},
                     {"kv_heads", c.kv_heads},
                     {"head_dim", c.head_dim},
                     {"experts", c.experts},
                     {"experts_per_token", c.experts_per_token},
                     {"expert_inter", c.expert_inter},
                     {"draft_head", source.has_mtp()}};
  if (c.indexer) out["geometry"]["selection"] = {{"budget", c.indexer->budget}, {"block", c.indexer->ratio}};
  if (c.ple) {
    out["geometry"]["ngram"] = {{"layer", c.ple->layers.front()},
                                {"largest", c.ple->ngram_size},
                                {"heads", c.ple->heads()},
                                {"table_bytes", source.ngram_bytes(c.ple->layers.front())}};
  }
  out["experts"] = {{"format", format_name(layout.format)},
                    {"group", layout.geometry.group},
                    {"record_bytes", layout.bytes()},
                    {"records", c.record_layers() * c.experts}};
  if (const auto* packed = dynamic_cast<const store::PackedStore*>(&source)) describe(*packed, out);
  out["parameters"] = {{"experts", p.experts},
                       {"ngram", p.ngram},
                       {"draft_head", p.mtp},
                       {"delta_net", p.delta_net},
                       {"attention", p.attention},
                       {"hyper_connections", p.hyper},
                       {"embedding", p.embed},
                       {"head", p.head},
                       {"shared_experts", p.shared_experts},
                       {"routers", p.routers},
                       {"ngram_projections", p.ple},
                       {"vision", p.vision},
                       {"total", p.total()}};
  out["files"] = Json::array();
  for (const auto& file : source.files())
    out["files"].push_back({{"name", file.name}, {"bytes", file.bytes}});
  out["missing"] = source.missing();
  return out;
}

/// A line of words from the model's files.
template <class... Args>
void print_line(fmt::format_string<Args...> format, Args&&... args) {
  print_out("{}\n", text::printable(fmt::format(format, std::forward<Args>(args)...)));
}

void print_section(const Json& section, std::string_view title, bool counts) {
  print_out("{}\n", title);
  for (const auto& [key, value] : section.items()) {
    const std::string text = counts              ? format_count(value.get<std::uint64_t>())
                             : value.is_string() ? value.get<std::string>()
                                                 : dump_json(value);
    print_line("  {:<24}{}", key, text);
  }
}

/// A section of a store: an object a line or a value a line.
void print_lines(const Json& section, std::string_view title) {
  if (section.is_object()) return print_section(section, title, false);
  print_out("{}\n", title);
  for (const Json& entry : section) {
    std::string line;
    for (const auto& [key, value] : entry.items()) {
      line += fmt::format("  {} {}", key, value.is_string() ? value.get<std::string>() : dump_json(value));
    }
    print_line("{}", line);
  }
}

Result<void> inspect(const InspectOptions& options) {
  SLUICE_ASSIGN(const auto source, store::open_source(options.folder));
  const Json out = describe(*source);
  if (options.json) {
    print_out("{}\n", dump_json(out, 2));
    return {};
  }
  print_line("{}: {}, {}", options.folder, out["architecture"].get<std::string>(),
             out["form"].get<std::string>());
  print_section(out["geometry"], "geometry", false);
  print_section(out["experts"], "experts", false);
  for (const char* key : {"source", "tiers", "dense_bytes"}) {
    if (out.contains(key)) print_lines(out[key], key);
  }
  print_section(out["parameters"], "parameters", true);
  print_out("files\n");
  for (const Json& file : out["files"]) {
    print_line("  {:<40}{}", file["name"].get<std::string>(),
               format_size(file["bytes"].get<std::uint64_t>()));
  }
  for (const Json& missing : out["missing"]) print_line("missing: {}", missing.get<std::string>());
  return {};
}

}  // namespace

void add_inspect(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      add_command(app, "inspect", "Show what a store or a checkpoint holds, and what it lacks.",
                  "sluice inspect models/demo --json");
  command->add_option("MODEL", options->folder, "folder of a packed store or a checkpoint")->required();
  command->add_flag("--json", options->json, "JSON output");
  command->callback([options, &invocation] {
    invocation.run = [options] {
      const auto result = inspect(*options);
      return result.ok() ? kDone : fail(result.error());
    };
  });
}

}  // namespace sluice::cli
