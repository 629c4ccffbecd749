// A CUDA backend of one's own, and memory on its devices.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "lockstep/runtime/cuda/cuda_backend.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"

namespace lockstep::test {

/// Memory of a device for as long as a test needs it.
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

template <class F>
std::string message_of(F&& f) {
    try {
        f();
    } catch (const DeviceError& error) {
        return error.what();
    }
    return {};
}

}  // namespace lockstep::test
