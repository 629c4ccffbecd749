// Helpers for the stand-in's own tests.
#pragma once

#include <cstdlib>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/cuda_standin/standin.h"

/// Resets the stand-in; fails the case at its end if mistakes remain.
struct Fresh {
    explicit Fresh(const standin::Config& config = {}) { standin::reset(config); }
    ~Fresh() {
        for (const auto& each : standin::take_mistakes())
            FAIL_CHECK(std::string(standin::name_of(each.kind)) << ": " << each.message);
    }
    Fresh(const Fresh&) = delete;
    Fresh& operator=(const Fresh&) = delete;
};

/// The only mistake since the last call; clears its CUDA error.
inline standin::Kind only_mistake() {
    (void)cudaGetLastError();
    const auto made = standin::take_mistakes();
    for (const auto& each : made) UNSCOPED_INFO(standin::name_of(each.kind) << ": " << each.message);
    REQUIRE(made.size() == 1);
    return made[0].kind;
}

inline standin::Config devices(std::size_t count) {
    standin::Config config;
    config.devices.resize(count);
    return config;
}

inline void ok(cudaError_t status) { REQUIRE(status == cudaSuccess); }
inline void use(int device) { ok(cudaSetDevice(device)); }

inline cudaStream_t new_stream(int device = 0, unsigned flags = cudaStreamNonBlocking) {
    use(device);
    cudaStream_t stream = nullptr;
    ok(cudaStreamCreateWithFlags(&stream, flags));
    return stream;
}

inline cudaEvent_t new_event(int device = 0, unsigned flags = cudaEventDisableTiming) {
    use(device);
    cudaEvent_t event = nullptr;
    ok(cudaEventCreateWithFlags(&event, flags));
    return event;
}

template <class T>
T* on_device(const std::vector<T>& values, int device = 0) {
    use(device);
    void* data = nullptr;
    ok(cudaMalloc(&data, values.size() * sizeof(T)));
    ok(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return static_cast<T*>(data);
}

template <class T>
std::vector<T> on_host(const T* data, std::size_t count) {
    std::vector<T> values(count);
    ok(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
}
