// Virtual CPU devices and the host.
#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "lockstep/runtime/cpu/cpu_event.h"
#include "lockstep/runtime/cpu/cpu_stream.h"
#include "lockstep/runtime/internal/backend.h"
#include "lockstep/runtime/internal/cpu_topology.h"
#include "lockstep/runtime/internal/serial_mode.h"

namespace lockstep {

namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t huge_page = std::size_t{2} << 20;

class CpuBackend final : public Backend {
public:
    int device_count() override { return cpu_device_count(); }

    DeviceInfo info(int index) override {
        DeviceInfo info;
        info.name = cpu_model_name();
        info.total_memory = total_memory();
        info.free_memory = free_memory();
        info.units = index < 0 ? usable_cores() : cores_of_cpu_device(index);
        info.physical_index = index < 0 ? -1 : physical_cpu_device(index);
        return info;
    }

    bool peer_access(int, int) override { return true; }

    std::unique_ptr<StreamImpl> make_stream(int index, StreamRole role) override {
        const Device device = index < 0 ? Device::host() : Device::cpu(index);
        if (index < 0 || serial_mode::enabled()) return std::make_unique<InlineStream>(device);
        // Whoever computes waits for others briefly and often; to be put to sleep and woken takes as long.
        const std::chrono::microseconds patience(role == StreamRole::compute ? 200 : 0);
        return std::make_unique<QueueStream>(device, patience);
    }

    std::unique_ptr<EventImpl> make_event(int) override { return std::make_unique<CpuEvent>(); }

    void* allocate(int, std::size_t bytes) override {
        // Large blocks on huge pages: the convolutions' strides would otherwise miss the TLB on every row.
        const bool large = bytes >= huge_page;
        const std::size_t unit = large ? huge_page : alignment;
        void* memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
        if (memory && large) madvise(memory, bytes, MADV_HUGEPAGE);
        return memory;
    }
    void release(int, void* memory, std::size_t) noexcept override { std::free(memory); }
    void* allocate_pinned(std::size_t bytes) override { return allocate(-1, bytes); }
    void release_pinned(void* memory, std::size_t) noexcept override { std::free(memory); }
    std::string absence_reason() override { return {}; }
};

}  // namespace

Backend& cpu_backend() {
    static auto* backend = new CpuBackend;
    return *backend;
}

}  // namespace lockstep
