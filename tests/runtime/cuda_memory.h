// Memory on the devices of a CUDA backend created by a test.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "lockstep/runtime/cuda/cuda_backend.h"
#include "lockstep/tests/catch.h"

namespace lockstep::test {

/// Device memory for the duration of a test.
struct Memory {
    template <class Machine>
    Memory(Machine& on, int device, std::size_t count)
        : backend(on.backend),
          index(device),
          bytes(count * sizeof(int)),
          data(static_cast<int*>(backend.allocate(device, bytes))) {
        REQUIRE(data != nullptr);
    }
    ~Memory() { backend.release(index, data, bytes); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    cuda::CudaBackend& backend;
    int index;
    std::size_t bytes;
    int* data;
};

inline std::vector<int> numbers(std::size_t count) {
    std::vector<int> values(count);
    std::iota(values.begin(), values.end(), 5);
    return values;
}

}  // namespace lockstep::test
