// The plain loops compiled for any processor of this architecture.
#define LOCKSTEP_LOOPS loops_generic

#include "lockstep/ops/cpu/loops_kernels.h"
