// Kernels that tests launch; machine.h documents them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lockstep::test {

/// Declares reads of the first `declared` elements of `from`.
void launch_add_one(cudaStream_t stream, int* to, const int* from, std::int64_t n, std::int64_t declared);

/// The name of the kernel that `launch_write_nowhere` launches.
inline constexpr const char* nowhere = "write_nowhere";
void launch_write_nowhere(cudaStream_t stream);

}  // namespace lockstep::test
