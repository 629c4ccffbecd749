// State of the stand-in: configuration, reset, counters.
#include <cstdlib>
#include <stdexcept>

#include "lockstep/tests/cuda_standin/state.h"

namespace standin {
namespace {

std::atomic<std::uint64_t> epoch_counter{0};

std::uint64_t number_from_environment(const char* variable, std::uint64_t otherwise, std::uint64_t largest) {
    const char* text = std::getenv(variable);
    if (text == nullptr) return otherwise;
    const std::string all(text);
    if (all.empty() || all.size() > 18 || all.find_first_not_of("0123456789") != std::string::npos ||
        std::stoull(all) > largest)
        throw std::invalid_argument(std::string(variable) + "=" + all + ": a number of 0 to " +
                                    std::to_string(largest) + " was expected");
    return std::stoull(all);
}

// As in the driver: indices up to the first one that is not a device; no device at all if one is listed twice.
std::vector<int> visible_devices(int physical) {
    std::vector<int> visible;
    const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
    if (text == nullptr) {
        for (int each = 0; each < physical; ++each) visible.push_back(each);
        return visible;
    }
    const std::string all(text);
    for (std::size_t begin = 0; begin <= all.size();) {
        const std::size_t end = std::min(all.find(',', begin), all.size());
        const std::string item = all.substr(begin, end - begin);
        char* rest = nullptr;
        const long index = std::strtol(item.c_str(), &rest, 10);
        if (item.empty() || *rest != '\0' || index < 0 || index >= physical) break;
        for (const int earlier : visible)
            if (earlier == index) return {};
        visible.push_back(static_cast<int>(index));
        begin = end + 1;
    }
    return visible;
}

// Waits for all work and lets the workers end. Aborts the remaining communicators, which may wait for absent ranks.
void stop(State& shared) {
    for (const auto& [handle, each] : shared.communicators) each->abort();
    std::vector<MarkerPtr> ends;
    for (auto& [handle, each] : shared.streams) ends.push_back(Stream::finish(each));
    for (auto& each : shared.devices) ends.push_back(Stream::finish(each.default_stream));
    for (const auto& [device, end] : shared.ending) ends.push_back(end);
    for (const auto& each : ends) each->wait();
}

void forget(State& shared) {
    shared.streams.clear();
    shared.ending.clear();
    shared.events.clear();
    shared.objects.clear();
    shared.communicators.clear();
    shared.devices.clear();
    for (const auto& [address, block] : shared.blocks)
        if (block.type != MemoryType::registered) std::free(block.base);
    shared.blocks.clear();
    shared.memory_of_launches.clear();
    for (const auto& each : shared.quarantine) std::free(each.memory);
    shared.quarantine.clear();
    shared.quarantined_bytes = 0;
    shared.freed.clear();
    shared.counted = {};
    shared.contexts.clear();
    shared.threads.clear();
}

void start(State& shared, const Config& config) {
    shared.config = config;
    for (const int physical : visible_devices(static_cast<int>(config.devices.size()))) {
        Device device;
        device.config = config.devices[static_cast<std::size_t>(physical)];
        device.physical = physical;
        const int index = static_cast<int>(shared.devices.size());
        device.default_stream =
            std::make_shared<Stream>(index, cudaStreamDefault, 0, static_cast<std::uint64_t>(index));
        shared.devices.push_back(std::move(device));
    }
    shared.counted.devices.resize(shared.devices.size());
    shared.epoch = ++epoch_counter;
}

}  // namespace

std::uint64_t current_epoch() { return epoch_counter.load(); }

Config config_from_environment() {
    Config config;
    config.devices.resize(number_from_environment("LOCKSTEP_STANDIN_DEVICES", 2, 64));
    config.peer_access = number_from_environment("LOCKSTEP_STANDIN_PEER_ACCESS", 1, 1) == 1;
    config.max_delay_us = static_cast<int>(number_from_environment("LOCKSTEP_STANDIN_DELAY_US", 0, 1000000));
    config.launch_queue = number_from_environment("LOCKSTEP_STANDIN_LAUNCH_QUEUE", config.launch_queue, 1000000);
    config.delay_seed = number_from_environment("LOCKSTEP_STANDIN_DELAY_SEED", 0, 1000000000);
    return config;
}

State& state() {
    static State* shared = [] {
        auto created = std::make_unique<State>();
        const Config config = config_from_environment();
        reset_faults(config);
        start(*created, config);
        return created.release();  // outlives every worker and every static object of the program
    }();
    return *shared;
}

void reset(const Config& config) {
    State& shared = state();
    const std::scoped_lock lock(shared.mutex);
    stop(shared);
    forget(shared);
    start(shared, config);
    reset_faults(config);
}

std::uintptr_t Call::new_handle() { return 0x1000 + 64 * ++state_.next_handle; }  // never reused, never an address

Device& Call::device(int index) {
    if (index < 0 || static_cast<std::size_t>(index) >= state_.devices.size())
        refuse(cudaErrorInvalidDevice, Kind::invalid_argument, "there is no device " + std::to_string(index));
    return state_.devices[static_cast<std::size_t>(index)];
}

void Call::need_context(int device) { state_.contexts.emplace(device, name_); }

std::map<int, std::string> contexts() {
    State& shared = state();
    const std::scoped_lock lock(shared.mutex);
    return shared.contexts;
}

void set_memory_limit(int device, std::size_t bytes) {
    State& shared = state();
    const std::scoped_lock lock(shared.mutex);
    shared.devices.at(static_cast<std::size_t>(device)).config.memory = bytes;
}

Counters counters() {
    State& shared = state();
    const std::scoped_lock lock(shared.mutex);
    Counters result = shared.counted;
    result.live_streams = shared.streams.size();
    result.live_events = shared.events.size();
    result.live_handles = shared.objects.size();
    result.live_communicators = shared.communicators.size();
    for (const auto& [address, block] : shared.blocks) result.live_pinned += block.type == MemoryType::device ? 0 : 1;
    return result;
}

void reset_counters() {
    State& shared = state();
    const std::scoped_lock lock(shared.mutex);
    shared.counted.pairs.clear();
    shared.counted.calls.clear();
    shared.counted.host_waits.clear();
    for (auto& each : shared.counted.devices) {
        each.launches.clear();
        each.arithmetic.clear();
        each.memsets = each.host_functions = 0;
        each.bytes_peak = each.bytes_in_use;
    }
}

std::set<std::thread::id> calling_threads() {
    State& shared = state();
    const std::scoped_lock lock(shared.mutex);
    return shared.threads;
}

}  // namespace standin
