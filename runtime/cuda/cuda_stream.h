// Streams and events of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <exception>
#include <memory>
#include <mutex>

#include "lockstep/runtime/internal/backend.h"

namespace lockstep::cuda {

class CudaBackend;

class CudaEvent final : public EventImpl {
public:
    /// `gpu`: the runtime's index of the device.
    CudaEvent(int gpu, bool timed);
    ~CudaEvent() override;
    CudaEvent(const CudaEvent&) = delete;
    CudaEvent& operator=(const CudaEvent&) = delete;

    bool done() const override;
    void synchronize() const override;
    double elapsed_ms_since(const EventImpl& from) const override;
    bool recorded() const override { return recorded_; }

    void record_on(cudaStream_t stream);
    cudaEvent_t native() const { return event_; }

private:
    int gpu_;
    cudaEvent_t event_ = nullptr;
    bool recorded_ = false;
};

class CudaStream final : public StreamImpl {
public:
    /// `index`: the logical device; `gpu`: the GPU that it is part of.
    CudaStream(CudaBackend& backend, int index, int gpu);
    ~CudaStream() override;
    CudaStream(const CudaStream&) = delete;
    CudaStream& operator=(const CudaStream&) = delete;

    void run(Work work, int threads) override;
    bool runs_at_once() const override { return true; }
    void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) override;
    void copy_2d(void* to, std::size_t to_pitch, Device to_device, const void* from, std::size_t from_pitch,
                 Device from_device, std::size_t row_bytes, std::size_t rows) override;
    void fill(void* to, std::uint8_t value, std::size_t bytes) override;
    void callback(std::function<void()> function) override;
    void record(EventImpl& event) override;
    void wait(const EventImpl& event) override;
    void synchronize() override;
    bool idle() const override;

private:
    /// Exceptions thrown by host functions; shared with those still queued.
    struct Failure {
        std::mutex mutex;
        std::exception_ptr first;
    };
    struct Callback;
    /// Enables peer access to the side that is not this stream's device; false if the hardware does not support it.
    bool opens(Device to, Device from);
    static void run_callback(void* data) noexcept;

    CudaBackend& backend_;
    int index_;
    int gpu_;
    cudaStream_t stream_ = nullptr;
    std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
};

}  // namespace lockstep::cuda
