// What this program was built with and runs on, for reports: results are bit-equal only for equal versions.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// Name and version of Lockstep, the compiler and the libraries that it uses: "lockstep", "compiler", "fmt", "oneDNN",
/// "zlib", and in a build with CUDA "cuda_runtime", "cuda_driver" ("none" without one), "cudnn", "cublasLt". Shared
/// libraries are asked when called; fmt and the compiler are those of the build.
std::vector<std::pair<std::string, std::string>> library_versions();

}  // namespace lockstep
