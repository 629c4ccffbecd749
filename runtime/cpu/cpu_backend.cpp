// Virtual CPU devices and the host.
#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "lockstep/runtime/cpu/cpu_event.h"
#include "lockstep/runtime/cpu/cpu_stream.h"
#include "lockstep/runtime/cpu/serial_mode.h"
#include "lockstep/runtime/internal/backend.h"
#include "lockstep/runtime/internal/cpu_topology.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

namespace {

constexpr std::size_t alignment = 256;
constexpr std::size_t huge_page = std::size_t{2} << 20;

CpuQueue::Part part_of(StreamRole role) {
    switch (role) {
        case StreamRole::compute: return CpuQueue::Part::helper;
        case StreamRole::reduce:
        case StreamRole::commit: return CpuQueue::Part::helped;
        case StreamRole::input:
        case StreamRole::collective: break;
    }
    return CpuQueue::Part::alone;
}

class CpuBackend final : public Backend {
public:
    int device_count() override { return cpu_device_count(); }

    DeviceInfo info(int index) override {
        DeviceInfo info;
        info.name = cpu_model_name();
        info.total_memory = total_memory();
        info.free_memory = free_memory();
        info.units = index < 0 ? usable_cores() : cores_of_cpu_device(index);
        info.cache_bytes = cache_of_a_core();
        info.physical_index = index < 0 ? -1 : physical_cpu_device(index);
        return info;
    }

    std::uint64_t hardware(int) override { return 0; }  // all are made of the same cores
    bool peer_access(int, int) override { return true; }
    bool host_access() override { return true; }
    bool in_use() override { return true; }

    std::unique_ptr<StreamImpl> make_stream(int index, StreamRole role) override {
        const Device device = index < 0 ? Device::host() : Device::cpu(index);
        if (index < 0 || serial_mode::enabled()) return std::make_unique<InlineStream>(device);
        return std::make_unique<QueueStream>(device, part_of(role));
    }

    std::unique_ptr<EventImpl> make_event(int, bool) override { return std::make_unique<CpuEvent>(); }

    void* allocate(int, std::size_t bytes) override {
        // Huge pages for large blocks: otherwise the strides of convolutions miss the TLB on every row.
        const bool large = bytes >= huge_page;
        const std::size_t unit = large ? huge_page : alignment;
        void* memory = std::aligned_alloc(unit, round_up(bytes, unit));
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
