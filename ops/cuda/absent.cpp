// CUDA kernels of a build without the toolkit: none.
#include "lockstep/runtime/internal/kernels.h"

namespace lockstep {

void lockstep_cuda_kernels(KernelTable& /*table*/) {}

}  // namespace lockstep
