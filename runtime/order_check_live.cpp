// The ordering checker of a running process, recordings, and names of memory.
#include <fmt/format.h>

#include <atomic>
#include <map>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "lockstep/runtime/internal/process.h"
#include "lockstep/runtime/order_checker.h"

namespace lockstep::order_check {

namespace {

struct NamedRange {
    std::uintptr_t end;
    std::string text;
};

struct Live {
    std::mutex mutex;
    bool checking = environment::flag("LOCKSTEP_CHECK_ORDER");
    bool recording = false;
    std::uint64_t failing_call = 0, calls = 0;
    std::atomic<bool> enabled{checking};
    OrderChecker checker;
    std::vector<OrderEntry> log;
    std::unordered_set<int> host_streams;         ///< ids of streams whose work the host executes itself
    std::map<std::uintptr_t, NamedRange> memory;  ///< disjoint, by first byte

    OrderEntry entry(OrderEntry::Kind kind, int stream, std::string_view name) {
        OrderEntry made;
        made.kind = kind;
        made.stream_name = name;
        made.stream = stream;
        if (name.starts_with("host/")) {
            host_streams.insert(stream);
            made.stream = OrderEntry::host;
        }
        return made;
    }

    void set_enabled() { enabled = checking || recording || failing_call > 0; }

    void report(OrderEntry entry) {
        if (++calls == failing_call)
            throw DeviceError(fmt::format("a call on stream {} was refused at a test's request", entry.stream_name));
        if (checking) {
            if (const auto violation = checker.append(entry)) throw OrderError(violation->text);
        }
        if (recording) log.push_back(std::move(entry));
    }
};

Live& live() {
    static auto* state = new Live;  // streams may work until the very end
    return *state;
}

std::mutex& names_mutex() {
    static auto* mutex = new std::mutex;  // separate: messages are formatted while the checker is locked
    return *mutex;
}

}  // namespace

bool enabled() { return live().enabled.load(std::memory_order_relaxed); }

void set_checking(bool on) {
    Live& state = live();
    const std::scoped_lock lock(state.mutex);
    state.checker = OrderChecker();
    state.checking = on;
    state.set_enabled();
}

void start_recording() {
    Live& state = live();
    const std::scoped_lock lock(state.mutex);
    if (state.recording) throw InvalidArgument("start_recording: a recording is active; expected take_recording first");
    state.recording = true;
    state.set_enabled();
}

std::vector<OrderEntry> take_recording() {
    Live& state = live();
    const std::scoped_lock lock(state.mutex);
    if (!state.recording)
        throw InvalidArgument("take_recording: no recording is active; expected start_recording first");
    state.recording = false;
    state.set_enabled();
    return std::exchange(state.log, {});
}

void arm_failure(std::uint64_t nth) {
    Live& state = live();
    const std::scoped_lock lock(state.mutex);
    state.failing_call = nth;
    state.calls = 0;
    state.set_enabled();
}

std::uint64_t calls_since_armed() {
    Live& state = live();
    const std::scoped_lock lock(state.mutex);
    return state.calls;
}

void name_memory(const void* address, std::size_t bytes, std::string_view text) {
    if (bytes == 0 || !enabled()) return;
    const std::scoped_lock lock(names_mutex());
    auto& memory = live().memory;
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    const std::uintptr_t end = begin + bytes;
    auto range = memory.upper_bound(begin);
    if (range != memory.begin() && std::prev(range)->second.end > begin) --range;
    while (range != memory.end() && range->first < end) {  // older names keep the parts outside
        const auto [old_begin, old] = *range;
        range = memory.erase(range);
        if (old_begin < begin) memory[old_begin] = {begin, old.text};
        if (old.end > end) memory[end] = old;
    }
    memory[begin] = {end, std::string(text)};
}

std::string memory_name(const void* address) {
    const std::scoped_lock lock(names_mutex());
    const auto& memory = live().memory;
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    auto range = memory.upper_bound(at);
    if (range == memory.begin() || (--range)->second.end <= at) return {};
    return range->second.text;
}

void on_work(int stream, std::string_view name, std::string_view what, std::span<const Access> accesses) {
    Live& state = live();
    const std::scoped_lock lock(state.mutex);
    OrderEntry entry = state.entry(OrderEntry::Kind::work, stream, name);
    entry.what = what;
    entry.accesses.assign(accesses.begin(), accesses.end());
    state.report(std::move(entry));
}

void on_record(int stream, std::string_view name, std::uint64_t event) {
    Live& state = live();
    const std::scoped_lock lock(state.mutex);
    OrderEntry entry = state.entry(OrderEntry::Kind::record, stream, name);
    entry.event = event;
    state.report(std::move(entry));
}

void on_wait(int stream, std::string_view name, std::uint64_t event) {
    Live& state = live();
    const std::scoped_lock lock(state.mutex);
    OrderEntry entry = state.entry(OrderEntry::Kind::wait, stream, name);
    entry.event = event;
    state.report(std::move(entry));
}

void on_host_wait_stream(int stream) {
    Live& state = live();
    const std::scoped_lock lock(state.mutex);
    if (state.host_streams.count(stream) > 0) return;  // the host has executed all of it itself
    OrderEntry entry = state.entry(OrderEntry::Kind::wait_stream, OrderEntry::host, "the host");
    entry.other = stream;
    state.report(std::move(entry));
}

void on_host_wait_event(std::uint64_t event) {
    Live& state = live();
    const std::scoped_lock lock(state.mutex);
    OrderEntry entry = state.entry(OrderEntry::Kind::wait, OrderEntry::host, "the host");
    entry.event = event;
    state.report(std::move(entry));
}

}  // namespace lockstep::order_check
