// Backends by kind of device, and the CUDA backend of a process that cannot have one.
#include <fmt/format.h>

#include <atomic>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/backend.h"
#include "lockstep/runtime/internal/backend_library.h"

namespace lockstep {

namespace {

/// No devices, and the reason.
class AbsentBackend final : public Backend {
public:
    explicit AbsentBackend(std::string reason) : reason_(std::move(reason)) {}

    int device_count() override { return 0; }
    DeviceInfo info(int index) override { refuse(index); }
    std::uint64_t hardware(int index) override { refuse(index); }
    bool peer_access(int, int) override { return false; }
    bool host_access() override { return false; }
    bool in_use() override { return false; }
    std::unique_ptr<StreamImpl> make_stream(int index, StreamRole) override { refuse(index); }
    std::unique_ptr<EventImpl> make_event(int index, bool) override { refuse(index); }
    void* allocate(int, std::size_t) override { return nullptr; }
    void release(int, void*, std::size_t) noexcept override {}
    void* allocate_pinned(std::size_t) override { return nullptr; }
    void release_pinned(void*, std::size_t) noexcept override {}
    std::string absence_reason() override { return reason_; }

private:
    [[noreturn]] void refuse(int index) const {
        throw DeviceError(fmt::format("cuda:{} does not exist: {}", index, reason_));
    }

    std::string reason_;
};

/// The backend that the process has asked for; null before.
std::atomic<Backend*> asked{nullptr};

Backend& find_cuda_backend() {
    std::string absence = excluded_backend_reason("cuda");
    Backend* found = absence.empty() ? lockstep_cuda_backend(absence) : nullptr;
    if (!found) found = new AbsentBackend(std::move(absence));
    asked = found;
    return *found;
}

}  // namespace

Backend& cuda_backend() {
    static Backend& instance = find_cuda_backend();
    return instance;
}

bool cuda_in_use() {
    Backend* const backend = asked;
    return backend && backend->in_use();
}

}  // namespace lockstep
