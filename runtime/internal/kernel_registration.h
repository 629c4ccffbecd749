// Filled in by ops/: the kernels of each kind of device. Declared here so that runtime/ includes nothing above it.
#pragma once

#include "lockstep/runtime/record.h"

namespace lockstep {

void register_cpu_kernels(KernelTable& table);
void register_cuda_kernels(KernelTable& table);

}  // namespace lockstep
