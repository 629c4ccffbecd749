// Every kind of mistake that the stand-in detects, made deliberately.
#include <cudnn.h>

#include "lockstep/tests/cuda_standin/fixture.h"

using namespace standin;

TEST_CASE("wrong current device") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream(0);
    void* data = on_device(std::vector<int>(4), 0);
    use(1);
    CHECK(enqueue_host_kernel(stream, "nothing", [] {}, {}) == cudaErrorInvalidResourceHandle);
    CHECK(only_mistake() == Kind::wrong_device);
    CHECK(cudaMemsetAsync(data, 0, 4, stream) == cudaErrorInvalidResourceHandle);
    CHECK(only_mistake() == Kind::wrong_device);
    const cudaEvent_t event = new_event(1);
    CHECK(cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle);
    CHECK(only_mistake() == Kind::wrong_device);
    ok(cudaStreamSynchronize(stream));  // allowed with any current device
    ok(cudaMemcpyAsync(data, data, 4, cudaMemcpyDeviceToDevice, stream));
    ok(cudaStreamDestroy(stream));
}

TEST_CASE("a peer copy that names the wrong devices") {
    const Fresh fresh;
    void* first = on_device(std::vector<int>(4), 0);
    void* second = on_device(std::vector<int>(4), 1);
    CHECK(cudaMemcpyPeerAsync(first, 1, second, 0, 16, nullptr) == cudaErrorInvalidValue);
    CHECK(only_mistake() == Kind::wrong_device);
}

TEST_CASE("another device's memory without peer access") {
    for (const bool possible : {true, false}) {
        Config config;
        config.peer_access = possible;
        const Fresh fresh(config);
        int* data = on_device(std::vector<int>(4), 0);
        const cudaStream_t stream = new_stream(1);
        CHECK(enqueue_host_kernel(stream, "read", [] {}, {reads(data, 16)}) == cudaErrorIllegalAddress);
        CHECK(only_mistake() == Kind::no_peer_access);
        if (possible) continue;
        CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaErrorPeerAccessUnsupported);
        CHECK(only_mistake() == Kind::no_peer_access);
    }
}

TEST_CASE("pageable host memory in a kernel") {
    const Fresh fresh;
    std::vector<int> pageable(4);
    const cudaStream_t stream = new_stream();
    CHECK(enqueue_host_kernel(stream, "write", [] {}, {writes(pageable.data(), 16)}) == cudaErrorIllegalAddress);
    CHECK(only_mistake() == Kind::host_memory);
    CHECK(cudaMemsetAsync(pageable.data(), 0, 16, stream) == cudaErrorInvalidValue);
    CHECK(only_mistake() == Kind::host_memory);
    void* pinned = nullptr;
    ok(cudaHostAlloc(&pinned, 16, cudaHostAllocPortable));
    ok(enqueue_host_kernel(stream, "write", [] {}, {writes(pinned, 16)}));
}

TEST_CASE("an event that was never recorded") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream();
    const cudaEvent_t event = new_event(0, cudaEventDefault), recorded = new_event(0, cudaEventDefault);
    ok(cudaStreamWaitEvent(stream, event, 0));
    CHECK(only_mistake() == Kind::event_not_recorded);
    ok(cudaEventSynchronize(event));
    CHECK(only_mistake() == Kind::event_not_recorded);
    ok(cudaEventQuery(event));
    CHECK(only_mistake() == Kind::event_not_recorded);
    ok(cudaEventRecord(recorded, stream));
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, recorded, event) == cudaErrorInvalidResourceHandle);
    CHECK(only_mistake() == Kind::event_not_recorded);
}

TEST_CASE("use of freed memory") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream();
    char* data = reinterpret_cast<char*>(on_device(std::vector<int>(4)));
    ok(cudaFree(data));
    CHECK(enqueue_host_kernel(stream, "read", [] {}, {reads(data + 4, 4)}) == cudaErrorIllegalAddress);
    CHECK(only_mistake() == Kind::use_after_free);
    CHECK(cudaMemcpyAsync(data, data, 4, cudaMemcpyDefault, stream) == cudaErrorInvalidValue);
    CHECK(only_mistake() == Kind::use_after_free);
    CHECK(cudaFree(data) == cudaErrorInvalidValue);
    CHECK(only_mistake() == Kind::double_free);
    void* ordered = nullptr;
    ok(cudaMallocAsync(&ordered, 64, stream));
    ok(cudaFreeAsync(ordered, stream));
    CHECK(cudaMemsetAsync(ordered, 0, 64, stream) == cudaErrorInvalidValue);
    CHECK(only_mistake() == Kind::use_after_free);
    CHECK(cudaFreeAsync(ordered, stream) == cudaErrorInvalidValue);
    CHECK(only_mistake() == Kind::double_free);
    void* pinned = nullptr;
    ok(cudaMallocHost(&pinned, 16));
    CHECK(cudaFree(pinned) == cudaErrorInvalidValue);
    CHECK(only_mistake() == Kind::invalid_argument);
    ok(cudaFreeHost(pinned));
    CHECK(cudaFreeHost(pinned) == cudaErrorInvalidValue);
    CHECK(only_mistake() == Kind::double_free);
}

TEST_CASE("destroyed streams, events and descriptors") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream();
    const cudaEvent_t event = new_event();
    ok(cudaStreamDestroy(stream));
    CHECK(cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle);
    CHECK(only_mistake() == Kind::destroyed_handle);
    CHECK(cudaStreamDestroy(stream) == cudaErrorInvalidResourceHandle);
    CHECK(only_mistake() == Kind::destroyed_handle);
    ok(cudaEventDestroy(event));
    CHECK(cudaEventSynchronize(event) == cudaErrorInvalidResourceHandle);
    CHECK(only_mistake() == Kind::destroyed_handle);
    cudnnTensorDescriptor_t tensor = nullptr;
    REQUIRE(cudnnCreateTensorDescriptor(&tensor) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnDestroyTensorDescriptor(tensor) == CUDNN_STATUS_SUCCESS);
    CHECK(cudnnDestroyTensorDescriptor(tensor) == CUDNN_STATUS_BAD_PARAM);
    CHECK(only_mistake() == Kind::destroyed_handle);
}

TEST_CASE("ranges that exceed their block") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream();
    int* data = on_device(std::vector<int>(8));
    std::vector<int> host(8);
    CHECK(cudaMemcpy(data + 1, host.data(), 32, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(only_mistake() == Kind::out_of_bounds);
    CHECK(cudaMemsetAsync(data, 0, 33, stream) == cudaErrorInvalidValue);
    CHECK(only_mistake() == Kind::out_of_bounds);
    // Three rows of 8 bytes, 16 apart: the last one ends at 40.
    CHECK(cudaMemcpy2DAsync(data, 16, host.data(), 8, 8, 3, cudaMemcpyHostToDevice, stream) == cudaErrorInvalidValue);
    CHECK(only_mistake() == Kind::out_of_bounds);
    CHECK(enqueue_host_kernel(stream, "read", [] {}, {reads(data + 7, 8)}) == cudaErrorIllegalAddress);
    CHECK(only_mistake() == Kind::out_of_bounds);
    ok(cudaMemcpy2D(data, 16, host.data(), 8, 8, 2, cudaMemcpyHostToDevice));
}

TEST_CASE("an error that is never fetched") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream();
    inject_failure("cudaStreamSynchronize", 1, cudaErrorLaunchFailure);
    (void)cudaStreamSynchronize(stream);
    ok(cudaStreamSynchronize(stream));
    const auto made = take_mistakes();
    REQUIRE(made.size() == 1);
    CHECK(made[0].kind == Kind::ignored_error);
    CHECK(made[0].message.find("cudaStreamSynchronize returned cudaErrorLaunchFailure") == 0);

    inject_failure("cudaStreamSynchronize", 1, cudaErrorLaunchFailure);
    (void)cudaStreamSynchronize(stream);  // the last call: detected at the end
    CHECK(take_mistakes().at(0).kind == Kind::ignored_error);

    cudnnHandle_t handle = nullptr;
    inject_failure("cudnnCreate", 1, CUDNN_STATUS_INTERNAL_ERROR);
    CHECK(cudnnCreate(&handle) == CUDNN_STATUS_INTERNAL_ERROR);
    CHECK(std::string(cudnnGetErrorString(CUDNN_STATUS_INTERNAL_ERROR)) == "CUDNN_STATUS_INTERNAL_ERROR");
    CHECK(take_mistakes().empty());
}

TEST_CASE("arguments that CUDA rejects") {
    const Fresh fresh;
    CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
    CHECK(only_mistake() == Kind::invalid_argument);
    int* data = on_device(std::vector<int>(4));
    std::vector<int> host(4);
    CHECK(cudaMemcpy(host.data(), data, 16, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
    CHECK(only_mistake() == Kind::invalid_argument);
    CHECK(cudaMemcpy2D(data, 4, host.data(), 8, 8, 1, cudaMemcpyDefault) == cudaErrorInvalidPitchValue);
    CHECK(only_mistake() == Kind::invalid_argument);
    CHECK(cudaFree(data + 1) == cudaErrorInvalidValue);
    CHECK(only_mistake() == Kind::invalid_argument);
    ok(cudaHostRegister(host.data(), 16, cudaHostRegisterDefault));
    CHECK(cudaHostRegister(host.data(), 16, cudaHostRegisterDefault) == cudaErrorHostMemoryAlreadyRegistered);
    CHECK(only_mistake() == Kind::invalid_argument);
    ok(cudaHostUnregister(host.data()));
    const cudaEvent_t untimed = new_event(0, cudaEventDisableTiming);
    float milliseconds = 0;
    CHECK(cudaEventElapsedTime(&milliseconds, untimed, untimed) == cudaErrorInvalidResourceHandle);
    CHECK(only_mistake() == Kind::invalid_argument);
}

TEST_CASE("CUDA calls from a host function") {
    const Fresh fresh;
    const cudaStream_t stream = new_stream();
    cudaError_t status = cudaSuccess;
    ok(cudaLaunchHostFunc(
        stream,
        [](void* result) {
            int device = 0;
            *static_cast<cudaError_t*>(result) = cudaGetDevice(&device);
        },
        &status));
    ok(cudaStreamSynchronize(stream));
    CHECK(status == cudaErrorNotPermitted);
    CHECK(only_mistake() == Kind::called_from_callback);
}
