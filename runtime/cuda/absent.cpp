// The CUDA backend of a build without the toolkit: no devices, and the reason.
#include <fmt/format.h>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/backend.h"

namespace lockstep {

namespace {

constexpr const char* reason = "built without the CUDA toolkit";

class AbsentBackend final : public Backend {
public:
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
    std::string absence_reason() override { return reason; }

private:
    [[noreturn]] static void refuse(int index) {
        throw DeviceError(
            fmt::format("cuda:{} does not exist: {}; expected a build with the CUDA toolkit", index, reason));
    }
};

}  // namespace

Backend& cuda_backend() {
    static AbsentBackend instance;
    return instance;
}

}  // namespace lockstep
