// How the CUDA stand-in of a program runs the library's kernels, if it runs them as nvcc compiled them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "lockstep/tests/ptx/machine.h"

namespace lockstep::ptx {

/// A launch that has run, on a thread of the stand-in.
struct Ran {
    std::string name;  ///< the one that the library gave it
    const Kernel& kernel;
    std::uint64_t blocks;  ///< blocks of its grid
    const Counters& counters;
};

/// How launches run from now on. The library's kernels are loops over the grid, so that they take any number of blocks.
struct Emulation {
    Schedule schedule = lockstep_schedule;
    unsigned most_blocks = ~0u;
    std::uint64_t most_interpreted = ~std::uint64_t{0};  ///< blocks of a launch; see LaunchOptions
    std::function<void(const Ran&)> observer = nullptr;
};
Emulation& emulation();

/// Mangled names of the library's kernels, each with the number of its launches so far, without the hashes of unnamed
/// namespaces.
std::map<std::string, std::uint64_t> launches_by_kernel();

}  // namespace lockstep::ptx
