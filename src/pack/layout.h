// What a store will hold and where: a manifest before any byte is written.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "pack/options.h"
#include "store/manifest.h"
#include "store/source.h"

namespace sluice::pack {

/// The manifest of the store that `source` and `options` make, with all sizes and offsets; checksums are
/// zero. The one place that decides what a store holds: `sluice plan` and the engine ask it too. Errors:
/// precisions that the source cannot give, widths that no group divides.
Result<store::Manifest> plan_store(const store::SourceForm& source, const PackOptions& options);

/// Names of the files beside the weights that belong to a model and are copied where they are there.
std::span<const std::string_view> copied_files();
/// The largest of them that is taken.
inline constexpr std::uint64_t kMostCopied = std::uint64_t{256} << 20;

/// Whether a file of this name beside the weights belongs to a model and is copied.
bool is_copied_file(std::string_view name);

}  // namespace sluice::pack
