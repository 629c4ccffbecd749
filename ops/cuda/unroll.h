// Pragmas for loops of device code.
#pragma once

#if defined(__CUDA_ARCH__)
/// Unrolls the loop that follows: arrays indexed by its variable are registers.
#define LOCKSTEP_UNROLL _Pragma("unroll")
#define LOCKSTEP_UNROLL_4 _Pragma("unroll 4")
#define LOCKSTEP_NO_UNROLL _Pragma("unroll 1")
#else
#define LOCKSTEP_UNROLL
#define LOCKSTEP_UNROLL_4
#define LOCKSTEP_NO_UNROLL
#endif
