#include "lockstep/runtime/internal/eager_state.h"

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <new>

#include "lockstep/runtime/memory.h"

namespace lockstep::eager_state {

namespace {

struct DeviceState {
    std::mutex mutex;                      // for the writes; enqueues, never waits
    std::shared_ptr<Buffer> memory;        // StepState, then StatusWord; stays once it is there
    std::atomic<std::uint64_t> epoch = 0;  // of `seed_epoch` when the state was uploaded
};

constexpr std::size_t status_offset = 64;
std::atomic<std::uint32_t> ordinals{0};
std::atomic<std::uint64_t> seed_epoch{1};
std::atomic<std::uint64_t> seed_value{0};

DeviceState& state_of(Device device) {
    constexpr std::size_t most_devices = 65;
    static auto* firsts = new std::array<std::array<std::atomic<DeviceState*>, most_devices>, 2>{};
    static auto* mutex = new std::mutex;
    static auto* states = new std::map<Device, DeviceState>;
    const auto number = static_cast<std::size_t>(device.index() + 1);
    auto* first = number < most_devices ? &(*firsts)[static_cast<std::size_t>(device.kind())][number] : nullptr;
    if (first)
        if (DeviceState* known = first->load(std::memory_order_acquire)) return *known;
    const std::scoped_lock lock(*mutex);
    DeviceState& state = (*states)[device];
    if (first) first->store(&state, std::memory_order_release);
    return state;
}

/// Brings the seed of `wanted` to the device.
void upload(DeviceState& state, Device device, std::uint64_t wanted) {
    Stream& stream = Stream::of(device);
    const std::shared_ptr<Buffer> memory = Buffer::allocate(stream, status_offset + sizeof(StatusWord), "random state");
    const std::shared_ptr<Buffer> seed = Buffer::allocate_pinned(sizeof(StepState));
    seed->used_on(stream);  // goes when the copy has been made
    auto* fresh = new (seed->data()) StepState;
    fresh->seed = seed_value;
    const std::scoped_lock lock(state.mutex);
    if (state.epoch >= wanted) return;
    if (!state.memory) {
        stream.fill(memory->data(), 0, memory->bytes());
        state.memory = memory;
    }
    stream.copy(state.memory->data(), device, fresh, Device::host(), sizeof *fresh);
    state.epoch.store(wanted, std::memory_order_release);
}

}  // namespace

State of(Device device) {
    DeviceState& state = state_of(device);
    const std::uint64_t wanted = seed_epoch;
    if (state.epoch.load(std::memory_order_acquire) < wanted) upload(state, device, wanted);
    char* memory = static_cast<char*>(state.memory->data());
    return {reinterpret_cast<const StepState*>(memory), reinterpret_cast<StatusWord*>(memory + status_offset)};
}

std::uint32_t next_ordinal() { return ordinals++; }

void reseed(std::uint64_t seed) {
    seed_value = seed;
    ordinals = 0;
    ++seed_epoch;
}

}  // namespace lockstep::eager_state
