// CUDA kernels of a build without the toolkit: none.
#include "lockstep/runtime/internal/kernels.h"

namespace lockstep {

void register_cuda_kernels(KernelTable& /*table*/) {}

}  // namespace lockstep
