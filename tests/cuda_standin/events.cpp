// Events and host functions.
#include "lockstep/tests/cuda_standin/state.h"

namespace standin {

Event& Call::event(cudaEvent_t handle) {
    const auto found = state_.events.find(reinterpret_cast<std::uintptr_t>(handle));
    if (found == state_.events.end())
        refuse(cudaErrorInvalidResourceHandle, Kind::destroyed_handle, "the event was destroyed or never created");
    return found->second;
}

namespace {

void create(Call& call, cudaEvent_t* event, unsigned flags) {
    constexpr unsigned known = cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess;
    if (event == nullptr || (flags & ~known) != 0)
        refuse(cudaErrorInvalidValue, Kind::invalid_argument, "null pointer or unknown flags");
    const std::uintptr_t id = call.new_handle();
    call.state().events.emplace(id, Event{call.current_device(), flags, nullptr});
    *event = reinterpret_cast<cudaEvent_t>(id);
}

// In CUDA such a wait returns at once, which is hardly the caller's intention.
bool never_recorded(const Call& call, const Event& event) {
    if (event.recorded != nullptr) return false;
    record_mistake(Kind::event_not_recorded, std::string(call.name()) + ": the event was never recorded");
    return true;
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return runtime_call("cudaEventCreate", [&](Call& call) { create(call, event, cudaEventDefault); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
    return runtime_call("cudaEventCreateWithFlags", [&](Call& call) { create(call, event, flags); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return runtime_call("cudaEventDestroy", [&](Call& call) {
        call.event(event);
        call.state().events.erase(reinterpret_cast<std::uintptr_t>(event));
    });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return runtime_call("cudaEventRecord", [&](Call& call) {
        call.event(event);
        const auto source = call.work_stream(stream);
        Event& target = call.event(event);
        if (source->device() != target.device)
            refuse(cudaErrorInvalidResourceHandle, Kind::wrong_device,
                   "an event of device " + std::to_string(target.device) + " on a stream of device " +
                       std::to_string(source->device()));
        target.recorded = source->enqueue_marker();
    });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    return runtime_call("cudaStreamWaitEvent", [&](Call& call) {
        if (flags != cudaEventWaitDefault) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "unknown flags");
        const auto target = call.work_stream(stream);
        const Event& source = call.event(event);
        if (!never_recorded(call, source)) target->enqueue_wait(source.recorded);
    });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return runtime_call("cudaEventSynchronize", [&](Call& call) {
        const Event& source = call.event(event);
        if (!never_recorded(call, source)) call.wait(MarkerPtr(source.recorded));
    });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    bool done = true;
    const cudaError_t status = runtime_call("cudaEventQuery", [&](Call& call) {
        const Event& source = call.event(event);
        if (!never_recorded(call, source)) done = source.recorded->done();
    });
    return status == cudaSuccess && !done ? not_ready() : status;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    bool done = true;
    const cudaError_t status = runtime_call("cudaEventElapsedTime", [&](Call& call) {
        const Event& first = call.event(start);
        const Event& last = call.event(end);
        if (milliseconds == nullptr) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "null pointer");
        if (((first.flags | last.flags) & cudaEventDisableTiming) != 0)
            refuse(cudaErrorInvalidResourceHandle, Kind::invalid_argument, "an event without timing");
        if (first.device != last.device)
            refuse(cudaErrorInvalidResourceHandle, Kind::wrong_device, "events of two devices");
        if (first.recorded == nullptr || last.recorded == nullptr)
            refuse(cudaErrorInvalidResourceHandle, Kind::event_not_recorded, "an event was never recorded");
        done = first.recorded->done() && last.recorded->done();
        if (done)
            *milliseconds =
                std::chrono::duration<float, std::milli>(last.recorded->time() - first.recorded->time()).count();
    });
    return status == cudaSuccess && !done ? not_ready() : status;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
    return runtime_call("cudaLaunchHostFunc", [&](Call& call) {
        if (function == nullptr) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "null function");
        const auto target = call.work_stream(stream);
        ++call.state().counted.devices[static_cast<std::size_t>(target->device())].host_functions;
        target->enqueue([function, data] { function(data); });
    });
}

}  // extern "C"
