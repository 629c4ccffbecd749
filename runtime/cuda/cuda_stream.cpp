#include "lockstep/runtime/cuda/cuda_stream.h"

#include "lockstep/runtime/cuda/check.h"
#include "lockstep/runtime/cuda/cuda_backend.h"
#include "lockstep/runtime/cuda/stream_counters.h"

namespace lockstep::cuda {

// ---- events -----------------------------------------------------------------------------------------------------

CudaEvent::CudaEvent(int gpu, bool timed) : gpu_(gpu) {
    const ScopedDevice scope(gpu_);
    check(cudaEventCreateWithFlags(&event_, timed ? cudaEventDefault : cudaEventDisableTiming),
          "cudaEventCreateWithFlags");
}

CudaEvent::~CudaEvent() {
    quietly_on(gpu_, [&] { return cudaEventDestroy(event_); });
}

bool CudaEvent::done() const {
    require_healthy();
    if (!recorded_) return true;
    const ScopedDevice scope(gpu_);
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) {
        cudaGetLastError();  // not an error, but the next error check would report it
        return false;
    }
    check(status, "cudaEventQuery");
    return true;
}

void CudaEvent::synchronize() const {
    require_healthy();
    if (!recorded_) return;
    const ScopedDevice scope(gpu_);
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
}

double CudaEvent::elapsed_ms_since(const EventImpl& from) const {
    const ScopedDevice scope(gpu_);
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, dynamic_cast<const CudaEvent&>(from).event_, event_),
          "cudaEventElapsedTime");
    return static_cast<double>(milliseconds);
}

void CudaEvent::record_on(cudaStream_t stream) {
    check(cudaEventRecord(event_, stream), "cudaEventRecord");
    recorded_ = true;
}

// ---- streams ----------------------------------------------------------------------------------------------------

CudaStream::CudaStream(CudaBackend& backend, int index, int gpu) : backend_(backend), index_(index), gpu_(gpu) {
    const ScopedDevice scope(gpu_);
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
}

CudaStream::~CudaStream() {
    quietly_on(gpu_, [&] {
        release_counters(stream_);
        return cudaStreamDestroy(stream_);
    });
}

void CudaStream::run(Work work, int /*threads*/) {
    const ScopedDevice scope(gpu_);
    work({Device::cuda(index_), stream_});
}

bool CudaStream::opens(Device to, Device from) {
    return backend_.peer_access(index_, to.index() == index_ ? from.index() : to.index());
}

void CudaStream::copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) {
    const ScopedDevice scope(gpu_);
    const int to_gpu = backend_.gpu_of(to_device);
    const int from_gpu = backend_.gpu_of(from_device);
    if (to_gpu >= 0 && from_gpu >= 0 && to_gpu != from_gpu) {
        // Direct if this device may access the other's memory, else through the host: same call, same result.
        opens(to_device, from_device);
        check(cudaMemcpyPeerAsync(to, to_gpu, from, from_gpu, bytes, stream_), "cudaMemcpyPeerAsync");
        return;
    }
    check(cudaMemcpyAsync(to, from, bytes, copy_kind(to_gpu, from_gpu), stream_), "cudaMemcpyAsync");
}

void CudaStream::copy_2d(void* to, std::size_t to_pitch, Device to_device, const void* from, std::size_t from_pitch,
                         Device from_device, std::size_t row_bytes, std::size_t rows) {
    const ScopedDevice scope(gpu_);
    const int to_gpu = backend_.gpu_of(to_device);
    const int from_gpu = backend_.gpu_of(from_device);
    if (to_gpu >= 0 && from_gpu >= 0 && to_gpu != from_gpu && !opens(to_device, from_device)) {
        // Only one-dimensional copies are guaranteed to fall back to the host.
        for (std::size_t row = 0; row < rows; ++row)
            check(cudaMemcpyPeerAsync(static_cast<char*>(to) + row * to_pitch, to_gpu,
                                      static_cast<const char*>(from) + row * from_pitch, from_gpu, row_bytes, stream_),
                  "cudaMemcpyPeerAsync");
        return;
    }
    check(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, row_bytes, rows, copy_kind(to_gpu, from_gpu), stream_),
          "cudaMemcpy2DAsync");
}

void CudaStream::fill(void* to, std::uint8_t value, std::size_t bytes) {
    const ScopedDevice scope(gpu_);
    check(cudaMemsetAsync(to, value, bytes, stream_), "cudaMemsetAsync");
}

struct CudaStream::Callback {
    std::function<void()> function;
    std::shared_ptr<Failure> failure;
};

void CudaStream::run_callback(void* data) noexcept {
    const std::unique_ptr<Callback> callback(static_cast<Callback*>(data));
    try {
        callback->function();
    } catch (...) {
        const std::scoped_lock lock(callback->failure->mutex);
        if (!callback->failure->first) callback->failure->first = std::current_exception();
    }
}

void CudaStream::callback(std::function<void()> function) {
    const ScopedDevice scope(gpu_);
    auto callback = std::make_unique<Callback>(Callback{std::move(function), failure_});
    check(cudaLaunchHostFunc(stream_, run_callback, callback.get()), "cudaLaunchHostFunc");
    callback.release();  // NOLINT(bugprone-unused-return-value): run_callback owns it now
}

void CudaStream::record(EventImpl& event) {
    const ScopedDevice scope(gpu_);
    dynamic_cast<CudaEvent&>(event).record_on(stream_);
}

void CudaStream::wait(const EventImpl& event) {
    const auto* same_kind = dynamic_cast<const CudaEvent*>(&event);
    if (same_kind == nullptr) {
        event.synchronize();  // an event of a CPU device: a GPU cannot wait for it
        return;
    }
    if (!event.recorded()) return;
    const ScopedDevice scope(gpu_);
    check(cudaStreamWaitEvent(stream_, same_kind->native(), 0), "cudaStreamWaitEvent");
}

void CudaStream::synchronize() {
    const ScopedDevice scope(gpu_);
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    std::exception_ptr thrown;
    {
        const std::scoped_lock lock(failure_->mutex);
        thrown = std::exchange(failure_->first, nullptr);
    }
    if (thrown) std::rethrow_exception(thrown);
}

bool CudaStream::idle() const {
    const ScopedDevice scope(gpu_);
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status == cudaErrorNotReady) {
        cudaGetLastError();
        return false;
    }
    check(status, "cudaStreamQuery");
    return true;
}

}  // namespace lockstep::cuda
