#include "lockstep/runtime/internal/eager_state.h"

#include <atomic>
#include <map>
#include <mutex>

#include "lockstep/runtime/memory.h"

namespace lockstep::eager_state {

namespace {

struct DeviceState {
    std::shared_ptr<Buffer> memory;  // StepState, then StatusWord
    std::uint64_t epoch = 0;         // of `seed_epoch` when the state was uploaded
};

constexpr std::size_t status_offset = 64;
std::atomic<std::uint32_t> ordinals{0};
std::atomic<std::uint64_t> seed_epoch{1};
std::atomic<std::uint64_t> seed_value{0};
std::mutex mutex;

DeviceState& state_of(Device device) {
    static auto* states = new std::map<Device, DeviceState>;
    DeviceState& state = (*states)[device];
    Stream& stream = Stream::of(device);
    if (!state.memory) {
        state.memory = Buffer::allocate(stream, status_offset + sizeof(StatusWord), "random state");
        stream.fill(state.memory->data(), 0, state.memory->bytes());
    }
    if (state.epoch != seed_epoch) {
        StepState fresh;
        fresh.seed = seed_value;
        stream.copy(state.memory->data(), device, &fresh, Device::host(), sizeof fresh);
        stream.synchronize();
        state.epoch = seed_epoch;
    }
    return state;
}

}  // namespace

State of(Device device) {
    const std::scoped_lock lock(mutex);
    char* memory = static_cast<char*>(state_of(device).memory->data());
    return {reinterpret_cast<const StepState*>(memory), reinterpret_cast<StatusWord*>(memory + status_offset)};
}

std::uint32_t next_ordinal() { return ordinals++; }

void reseed(std::uint64_t seed) {
    seed_value = seed;
    ordinals = 0;
    ++seed_epoch;
}

}  // namespace lockstep::eager_state
