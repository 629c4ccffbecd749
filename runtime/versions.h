// Versions that this program was built with and runs on, for reports: results are bit-identical only for equal
// versions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// Name and version of Lockstep, the compiler and the libraries that it uses. Names: "lockstep", "compiler", "fmt",
/// "oneDNN", "zlib"; with CUDA also "cuda_runtime", "cuda_driver" ("none" without one), "cudnn", "cublasLt". Versions
/// of shared libraries are queried at run time; those of fmt and the compiler are from the build.
std::vector<std::pair<std::string, std::string>> library_versions();

}  // namespace lockstep
