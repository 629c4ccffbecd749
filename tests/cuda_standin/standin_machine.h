// Machines of the CUDA stand-in.
#pragma once

#include <cstdlib>

#include "lockstep/tests/cuda_standin/standin.h"
#include "lockstep/tests/gpu/machine.h"
#include "lockstep/tests/runtime/cuda_memory.h"

namespace lockstep::test {

/// A backend on a reset stand-in. Fails the test if mistakes remain, or if several threads called CUDA.
struct StandinMachine {
    explicit StandinMachine(std::size_t gpus = 2, const char* per_gpu = nullptr, bool peers = true) {
        standin::Config config;
        config.devices.resize(gpus);
        config.peer_access = peers;
        config.delay_seed = 7;
        config.max_delay_us = 200;
        standin::reset(config);
        if (per_gpu != nullptr)
            ::setenv("LOCKSTEP_DEVICES_PER_GPU", per_gpu, 1);
        else
            ::unsetenv("LOCKSTEP_DEVICES_PER_GPU");
    }
    ~StandinMachine() {
        check_no_mistakes();
        ::unsetenv("LOCKSTEP_DEVICES_PER_GPU");
    }
    StandinMachine(const StandinMachine&) = delete;
    StandinMachine& operator=(const StandinMachine&) = delete;

    cuda::CudaBackend backend;
};

}  // namespace lockstep::test
