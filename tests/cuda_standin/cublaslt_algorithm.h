// Properties for which an algorithm of cuBLASLt was selected, and on which it relies.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <string>

#include "lockstep/tests/cuda_standin/state.h"

namespace standin {

inline constexpr std::uint32_t kVectorBytes = 16;  // no algorithm needs more alignment than its loads

// Contents of cublasLtMatmulAlgo_t.
struct Chosen {
    static constexpr std::uint64_t true_mark = 0x10c57e9;
    std::uint64_t mark;
    std::uint64_t workspace;
    std::int32_t sm_count, compute_capability;  // properties of the GPU for which it was selected
    std::uint32_t a, b, c, d, bias;             // bytes of alignment that it relies on
};
static_assert(sizeof(Chosen) <= sizeof(cublasLtMatmulAlgo_t));

inline std::uint32_t alignment_of(const void* address) {
    const auto bits = reinterpret_cast<std::uintptr_t>(address);
    return bits % kVectorBytes == 0 ? kVectorBytes : static_cast<std::uint32_t>(bits & (~bits + 1));
}

inline void check_alignment(const char* what, const void* address, std::uint32_t wanted) {
    if (address != nullptr && alignment_of(address) < wanted)
        refuse(cudaErrorInvalidValue, Kind::alignment,
               std::string(what) + " is aligned to " + std::to_string(alignment_of(address)) +
                   " bytes, but the algorithm was chosen for " + std::to_string(wanted));
}

}  // namespace standin
