#include "lockstep/runtime/internal/eager_state.h"

#include <fmt/format.h>

#include <atomic>
#include <map>
#include <mutex>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/memory.h"

namespace lockstep::eager_state {

namespace {

struct DeviceState {
    std::shared_ptr<Buffer> memory;  // StepState, then StatusWord
    std::uint64_t epoch = 0;         // of `seed_epoch` when the state was uploaded
    bool may_report = false;
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

const StepState* step(Device device) {
    const std::scoped_lock lock(mutex);
    return static_cast<const StepState*>(state_of(device).memory->data());
}

StatusWord* status(Device device) {
    const std::scoped_lock lock(mutex);
    DeviceState& state = state_of(device);
    state.may_report = true;
    return reinterpret_cast<StatusWord*>(static_cast<char*>(state.memory->data()) + status_offset);
}

std::uint32_t next_ordinal() { return ordinals++; }

void reseed(std::uint64_t seed) {
    seed_value = seed;
    ordinals = 0;
    ++seed_epoch;
}

void check(Stream& stream) {
    const std::scoped_lock lock(mutex);
    DeviceState& state = state_of(stream.device());
    if (!state.may_report) return;
    state.may_report = false;
    Stream& eager = Stream::of(stream.device());
    char* word = static_cast<char*>(state.memory->data()) + status_offset;
    StatusWord found;
    eager.copy(&found, Device::host(), word, stream.device(), sizeof found);
    eager.synchronize();
    if (found.code == 0) return;
    eager.fill(word, 0, sizeof found);
    if (found.code == static_cast<std::int32_t>(StatusCode::target_out_of_range))
        throw InvalidArgument(
            fmt::format("loss: target {} in row {} is out of range; classes count from 0", found.value, found.row));
    throw InvalidArgument("loss: the value is not finite; look at the inputs and the learning rate");
}

}  // namespace lockstep::eager_state
