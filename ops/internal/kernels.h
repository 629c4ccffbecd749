// Where the backends put their kernels into the tables.
#pragma once

#include "lockstep/runtime/record.h"

namespace lockstep {

void register_cpu_kernels(KernelTable& table);
void register_cuda_kernels(KernelTable& table);

}  // namespace lockstep
