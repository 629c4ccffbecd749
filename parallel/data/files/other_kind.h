// Recognizes files of another kind than the reader expects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/parallel/data/files/file.h"

namespace lockstep::internal {

/// Throws DataError if the first bytes are those of a kind of file that is commonly confused with another: "NAME:
/// offset 0: this is a Git LFS pointer, expected EXPECTED; run 'git lfs pull' ...". Otherwise does nothing.
void refuse_other_kind(const InputFile& file, std::string_view expected);

// Detection of files of torch.save.

enum class TorchFile : std::uint8_t {
    none,
    archive,  ///< file of PyTorch 1.6 and later
    legacy    ///< a bare pickle, of PyTorch before that
};

/// Detects the kind by the first bytes: a safetensors file, unlike these, has the '{' of its header at offset 8.
TorchFile torch_file(const InputFile& file);

/// Throws DataError: the file is of PyTorch before 1.6. The message says what to do.
[[noreturn]] void refuse_legacy(const InputFile& file);

}  // namespace lockstep::internal
