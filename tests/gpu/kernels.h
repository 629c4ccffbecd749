// Kernels that tests launch themselves; machine.h says what they do.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace lockstep::test {

void launch_add_one(cudaStream_t stream, int* to, const int* from, std::int64_t n);

/// The name of the kernel that `launch_write_nowhere` launches.
inline constexpr const char* nowhere = "write_nowhere";
void launch_write_nowhere(cudaStream_t stream);

}  // namespace lockstep::test
