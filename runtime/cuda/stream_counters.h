// Counters of a stream's kernels, in memory of its device.
#pragma once

#include <cuda_runtime_api.h>

namespace lockstep::cuda {

/// Number of counters of a stream.
inline constexpr int stream_counters = 2048;

/// The counters with which the blocks of a kernel count each other. They are zero when a kernel begins, and it must
/// leave them so: the kernels of a stream run one after the other and share them. Allocated on first use. The stream's
/// device must be current.
unsigned* counters_of(cudaStream_t stream);
/// Frees the counters of a stream that is about to be destroyed, in stream order.
void release_counters(cudaStream_t stream);

}  // namespace lockstep::cuda
