// Detection of files of torch.save.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/parallel/data/files/file.h"

namespace lockstep::internal {

enum class TorchFile : std::uint8_t {
    none,
    archive,  ///< file of PyTorch 1.6 and later
    legacy    ///< a bare pickle, of PyTorch before that
};

/// Detects by the first bytes: a safetensors file has the '{' of its header at offset 8, and these files do not.
TorchFile torch_file(const InputFile& file);

/// Throws DataError: the file is one of PyTorch before 1.6, and what to do.
[[noreturn]] void refuse_legacy(const InputFile& file);

}  // namespace lockstep::internal
