#include "lockstep/runtime/internal/copy_count.h"

#include <mutex>

namespace lockstep::copy_count {

namespace {

std::mutex mutex;

std::map<std::pair<Device, Device>, Count>& all_counts() {
    static auto* counts = new std::map<std::pair<Device, Device>, Count>;  // static models copy as they are destroyed
    return *counts;
}

}  // namespace

void add(Device from, Device to, std::size_t bytes) {
    if (from == to) return;
    const std::scoped_lock lock(mutex);
    Count& count = all_counts()[{from, to}];
    ++count.copies;
    count.bytes += bytes;
}

void reset() {
    const std::scoped_lock lock(mutex);
    all_counts().clear();
}

std::map<std::pair<Device, Device>, Count> between_devices() {
    const std::scoped_lock lock(mutex);
    return all_counts();
}

}  // namespace lockstep::copy_count
