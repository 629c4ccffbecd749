// CUDA kernels of a build without the toolkit: none.
#include "lockstep/runtime/internal/kernel_registration.h"

namespace lockstep {

void register_cuda_kernels(KernelTable& /*table*/) {}

}  // namespace lockstep
