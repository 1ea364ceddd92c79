#include "base/checksum.h"
#include "store/manifest.h"

namespace sluice::store {
namespace {

Json tensors_json(const std::vector<StoredDense>& dense) {
  Json list = Json::array();
  for (const StoredDense& tensor : dense) {
    Json entry = {{"name", tensor.name}, {"format", format_tag(tensor.format)}};
    if (spec::is_quantised(tensor.format)) entry["group"] = tensor.group;
    entry["shape"] = tensor.shape;
    entry["parts"] = Json::array();
    for (const FilePart& part : tensor.parts) {
      entry["parts"].push_back(
          {{"offset", part.offset}, {"bytes", part.bytes}, {"xxh3", checksum_text(part.checksum)}});
    }
    list.push_back(std::move(entry));
  }
  return list;
}

Json experts_json(const Manifest& manifest) {
  const spec::ExpertGeometry& geometry = manifest.tiers.front().layout.geometry;
  Json tiers = Json::array();
  for (const StoredTier& tier : manifest.tiers) {
    tiers.push_back({{"format", format_tag(tier.layout.format)},
                     {"group", tier.layout.geometry.group},
                     {"method", tier.method},
                     {"file", records_name(tier.layout.format)},
                     {"record_bytes", tier.layout.bytes()},
                     {"slot_bytes", slot_bytes(tier.layout)},
                     {"sums", sums_name(tier.layout.format)},
                     {"sums_xxh3", checksum_text(tier.sums_checksum)}});
    if (tier.importance != 0) tiers.back()["importance_xxh3"] = checksum_text(tier.importance);
  }
  return {{"layers", manifest.record_layers()},
          {"experts", manifest.config.experts},
          {"hidden", geometry.hidden},
          {"inter", geometry.inter},
          {"tiers", std::move(tiers)}};
}

Json ngram_json(const Manifest& manifest) {
  Json tables = Json::array();
  for (const StoredTable& table : manifest.tables) {
    const NgramPages pages(table.layout);
    Json entry = {{"layer", table.layer},
                  {"first_page", table.first_page},
                  {"page_bytes", pages.page_bytes},
                  {"rows", table.layout.rows},
                  {"columns", table.layout.columns},
                  {"format", format_tag(table.layout.format)}};
    if (spec::is_quantised(table.layout.format)) entry["group"] = table.layout.group;
    entry["multipliers"] = table.hash.multipliers;
    entry["sizes"] = table.hash.sizes;
    entry["offsets"] = table.hash.offsets;
    tables.push_back(std::move(entry));
  }
  Json blocks = Json::array();
  for (const std::uint64_t block : manifest.ngram_blocks) blocks.push_back(checksum_text(block));
  return {{"file", kNgramName},
          {"bytes", manifest.ngram_bytes},
          {"block_bytes", kNgramBlock},
          {"blocks", std::move(blocks)},
          {"sample", checksum_text(manifest.ngram_sample)},
          {"tables", std::move(tables)}};
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  Json root;
  root["format"] = "sluice-store";
  root["version"] = kStoreVersion;
  Json files = Json::array();
  for (const SourceFile& file : manifest.source_files) {
    files.push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"header_xxh3", checksum_text(file.header_checksum)}});
  }
  root["source"] = {{"name", manifest.source_name},
                    {"revision", manifest.source_revision},
                    {"form", manifest.source_form},
                    {"files", std::move(files)}};
  root["missing"] = manifest.missing;
  root["config"] = manifest.config_json;
  root["has_mtp"] = manifest.has_mtp;
  root["dense"] = {
      {"file", kDenseName}, {"bytes", manifest.dense_bytes}, {"tensors", tensors_json(manifest.dense)}};
  root["experts"] = experts_json(manifest);
  if (!manifest.tables.empty()) root["ngram"] = ngram_json(manifest);
  root["files"] = Json::array();
  for (const StoredFile& file : manifest.files) {
    root["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"xxh3", checksum_text(file.checksum)}});
  }
  // {"xxh3": "...",            <- the checksum of everything behind this line break
  //  "format": ...
  std::string body = dump_json(root, 1).substr(1) + "\n";
  if (body.front() == '\n') body.erase(0, 1);
  const std::uint64_t sum = checksum(std::as_bytes(std::span(body)));
  return fmt::format("{{\"xxh3\": \"{}\",\n", checksum_text(sum)) + body;
}

}  // namespace sluice::store
