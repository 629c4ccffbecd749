// Files that are not what their name says.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/parallel/data/files/file.h"

namespace lockstep::internal {

/// Throws DataError if the first bytes are those of a kind of file that people take for another one: "NAME: offset 0:
/// this is a Git LFS pointer, expected EXPECTED; run 'git lfs pull' ...". Otherwise does nothing.
void refuse_other_kind(const InputFile& file, std::string_view expected);

}  // namespace lockstep::internal
