// Copies and fills. Ranges are checked and counted when they are enqueued, executed on the stream's worker.
#include <cstring>

#include "lockstep/tests/cuda_standin/state.h"

namespace standin {
namespace {

struct Copy {
    void* to;
    std::size_t to_pitch;
    const void* from;
    std::size_t from_pitch;
    std::size_t width;  // bytes of one row
    std::size_t height;

    std::size_t extent(std::size_t pitch) const { return height == 0 || width == 0 ? 0 : pitch * (height - 1) + width; }
    void run() const {
        for (std::size_t row = 0; row < height; ++row)
            std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
                        width);
    }
};

Copy flat(void* to, const void* from, std::size_t bytes) { return {to, bytes, from, bytes, bytes, 1}; }

struct Place {
    int device = kHost;
    bool pageable = false;
};

Place place_of(Call& call, const void* data, std::size_t bytes) {
    if (data == nullptr) refuse(cudaErrorInvalidValue, Kind::invalid_argument, "null pointer");
    const Block* block = call.find(data, bytes);
    if (block == nullptr) return {kHost, true};
    return {block->type == MemoryType::device ? block->device : kHost, false};
}

void check_kind(cudaMemcpyKind kind, const Place& to, const Place& from) {
    if (kind == cudaMemcpyDefault) return;
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (to_device != (to.device != kHost) || from_device != (from.device != kHost))
        refuse(cudaErrorInvalidValue, Kind::invalid_argument, "the kind of copy does not agree with the pointers");
}

// `blocks_host`: the call returns only when the copy is complete (CUDA's synchronous copies, and pageable memory
// always).
void copy(Call& call, cudaStream_t stream, const Copy& what, cudaMemcpyKind kind, bool blocks_host) {
    const auto target = call.work_stream(stream);
    if (what.width * what.height == 0) return;
    const Place to = place_of(call, what.to, what.extent(what.to_pitch));
    const Place from = place_of(call, what.from, what.extent(what.from_pitch));
    check_kind(kind, to, from);
    auto& pair = call.state().counted.pairs[{from.device, to.device}];
    ++pair.copies;
    pair.bytes += what.width * what.height;
    if (from.device != to.device && from.device != kHost && to.device != kHost &&
        !call.device(to.device).peers.contains(from.device) && !call.device(from.device).peers.contains(to.device))
        ++pair.staged_copies;
    target->enqueue([what] { what.run(); });
    const bool between_devices = from.device != kHost && to.device != kHost;
    if (to.pageable || from.pageable || (blocks_host && !between_devices)) call.wait(target->enqueue_marker());
}

void copy_2d(Call& call, cudaStream_t stream, const Copy& what, cudaMemcpyKind kind, bool blocks_host) {
    if (what.width > what.to_pitch || what.width > what.from_pitch)
        refuse(cudaErrorInvalidPitchValue, Kind::invalid_argument, "a row is wider than its pitch");
    copy(call, stream, what, kind, blocks_host);
}

void copy_peer(Call& call, cudaStream_t stream, const Copy& what, int to_device, int from_device, bool blocks_host) {
    call.device(to_device);
    call.device(from_device);
    if (what.width != 0 && (place_of(call, what.to, what.width).device != to_device ||
                            place_of(call, what.from, what.width).device != from_device))
        refuse(cudaErrorInvalidValue, Kind::wrong_device, "a pointer does not belong to the device named for it");
    copy(call, stream, what, cudaMemcpyDeviceToDevice, blocks_host);
}

void fill(Call& call, cudaStream_t stream, void* to, int value, std::size_t bytes) {
    const auto target = call.launch_stream(stream);
    if (bytes == 0) return;
    const Place place = place_of(call, to, bytes);
    if (place.pageable) refuse(cudaErrorInvalidValue, Kind::host_memory, "memory that CUDA does not know");
    call.check_accesses(target->device(), "memset", {writes(to, bytes)});
    ++call.state().counted.devices[static_cast<std::size_t>(target->device())].memsets;
    target->enqueue([to, value, bytes] { std::memset(to, value, bytes); });
}

}  // namespace
}  // namespace standin

using namespace standin;

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return runtime_call("cudaMemcpy", [&](Call& call) { copy(call, nullptr, flat(to, from, bytes), kind, true); });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    return runtime_call("cudaMemcpyAsync", [&](Call& call) { copy(call, stream, flat(to, from, bytes), kind, false); });
}

cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device, size_t bytes) {
    return runtime_call("cudaMemcpyPeer", [&](Call& call) {
        copy_peer(call, nullptr, flat(to, from, bytes), to_device, from_device, true);
    });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t stream) {
    return runtime_call("cudaMemcpyPeerAsync", [&](Call& call) {
        copy_peer(call, stream, flat(to, from, bytes), to_device, from_device, false);
    });
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height,
                         cudaMemcpyKind kind) {
    return runtime_call("cudaMemcpy2D", [&](Call& call) {
        copy_2d(call, nullptr, {to, to_pitch, from, from_pitch, width, height}, kind, true);
    });
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                              size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
    return runtime_call("cudaMemcpy2DAsync", [&](Call& call) {
        copy_2d(call, stream, {to, to_pitch, from, from_pitch, width, height}, kind, false);
    });
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
    return runtime_call("cudaMemset", [&](Call& call) { fill(call, nullptr, to, value, bytes); });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
    return runtime_call("cudaMemsetAsync", [&](Call& call) { fill(call, stream, to, value, bytes); });
}

}  // extern "C"
