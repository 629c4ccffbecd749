// Versions of the CUDA libraries, where the build has them.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// Empty in a build without the CUDA toolkit.
std::vector<std::pair<std::string, std::string>> cuda_library_versions();

}  // namespace lockstep
