// Modes of kernels-bench that need no GPU: CUDA kernels as nvcc compiled them, in the PTX interpreter of tests/ptx.
#pragma once

#include <cstdint>
#include <string>

namespace emulated {

struct CountOptions {
    std::string only;                 ///< part of the names of cases
    std::uint64_t most_blocks = 512;  ///< blocks of a launch that are interpreted; 0: all
    std::string json;                 ///< file, or empty
};
/// Prints a table of instructions, memory sectors and times derived from them, by kernel.
void count_kernels(const CountOptions& options);

/// Prints the number of launches of a training step of several networks, by kernel.
void count_launches(const std::string& json);

}  // namespace emulated
