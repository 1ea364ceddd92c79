// Models as users name them: a packed store, or a checkpoint that is packed on first use.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "base/result.h"
#include "pack/options.h"
#include "store/source.h"

namespace sluice::pack {

/// $SLUICE_STORE_DIR, else sluice/stores in the XDG cache folder ($XDG_CACHE_HOME, else ~/.cache). Empty when
/// none of these is known.
std::filesystem::path default_store_dir();

/// Where the store of a checkpoint lies: a folder of `store_dir` named after the checkpoint and its path.
std::filesystem::path cached_store(const std::filesystem::path& checkpoint,
                                   const std::filesystem::path& store_dir);

/// An error in reading the store that was made of `model` on first use, with what mends it if it is damaged.
Error mendable(const Error& error, const std::filesystem::path& model, const std::filesystem::path& store);

/// Asked before a checkpoint is packed: whether what comes of it will be of use.
using PackCheck =
    std::function<Result<void>(const store::SourceForm& checkpoint, const PackOptions& options)>;

/// Opens a packed store, or the store of a checkpoint: it is made when there is none of these very files in
/// `store_dir` (empty: default_store_dir()), in place of an outdated one. An error of `check`, if there is
/// one, comes before any work.
Result<std::unique_ptr<store::WeightSource>> open_model(const std::filesystem::path& model,
                                                        const std::filesystem::path& store_dir,
                                                        const PackOptions& options,
                                                        const PackCheck& check = {});

}  // namespace sluice::pack
