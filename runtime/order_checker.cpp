#include "lockstep/runtime/order_checker.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "lockstep/runtime/moved_from.h"

namespace lockstep {

namespace {

/// How many operations of each stream (by slot) happened before a point.
using VectorClock = std::vector<std::uint64_t>;

void join(VectorClock& into, const VectorClock& from) {
    if (into.size() < from.size()) into.resize(from.size());
    for (std::size_t slot = 0; slot < from.size(); ++slot) into[slot] = std::max(into[slot], from[slot]);
}

/// A past access.
struct Epoch {
    std::size_t slot = 0;
    std::uint64_t count = 0;  ///< the operation's number in its stream, from 1
    std::size_t entry = 0;    ///< position in the log
    std::size_t what = 0;     ///< number of the operation's name

    bool before(const VectorClock& clock) const { return slot < clock.size() && clock[slot] >= count; }
};

/// Accesses to a range of memory: its latest write and, per stream, the latest read since.
struct History {
    std::uintptr_t end = 0;
    std::optional<Epoch> write;
    std::vector<Epoch> reads;
};

/// Disjoint ranges by their first byte.
using MemoryMap = std::map<std::uintptr_t, History>;

/// The first range that ends above `address`.
MemoryMap::const_iterator first_above(const MemoryMap& memory, std::uintptr_t address) {
    auto range = memory.upper_bound(address);
    if (range != memory.begin() && std::prev(range)->second.end > address) --range;
    return range;
}

/// Splits the range that contains `address` there.
void split(MemoryMap& memory, std::uintptr_t address) {
    auto range = memory.upper_bound(address);
    if (range == memory.begin()) return;
    --range;
    if (range->first == address || range->second.end <= address) return;
    memory.emplace_hint(std::next(range), address, range->second);
    range->second.end = address;
}

void note_write(MemoryMap& memory, std::uintptr_t begin, std::uintptr_t end, const Epoch& epoch) {
    split(memory, begin);
    split(memory, end);
    memory.erase(memory.lower_bound(begin), memory.lower_bound(end));
    memory.emplace(begin, History{end, epoch, {}});
}

void note_read(MemoryMap& memory, std::uintptr_t begin, std::uintptr_t end, const Epoch& epoch) {
    split(memory, begin);
    split(memory, end);
    auto range = memory.lower_bound(begin);
    for (std::uintptr_t at = begin; at < end; at = range->second.end, ++range) {
        if (range == memory.end() || range->first > at) {  // a gap: not accessed so far
            const std::uintptr_t gap_end = range == memory.end() ? end : std::min(end, range->first);
            range = memory.emplace_hint(range, at, History{gap_end, {}, {}});
        }
        auto& reads = range->second.reads;
        const auto same =
            std::find_if(reads.begin(), reads.end(), [&](const Epoch& read) { return read.slot == epoch.slot; });
        if (same == reads.end()) {
            reads.push_back(epoch);
        } else {
            *same = epoch;
        }
    }
}

/// An earlier access that a later one should have waited for, and the memory that both touch.
struct Conflict {
    Epoch earlier;
    bool earlier_writes = false;
    std::uintptr_t begin = 0, end = 0;
    const Access* access = nullptr;
};

std::string describe_memory(const Conflict& conflict) {
    const void* address = reinterpret_cast<const void*>(conflict.begin);
    const std::string name = order_check::memory_name(address);
    return fmt::format("{} ({} bytes at {} on {})", name.empty() ? "unnamed memory" : "'" + name + "'",
                       conflict.end - conflict.begin, address, conflict.access->owner.str());
}

}  // namespace

struct OrderChecker::State {
    struct StreamState {
        std::string name;
        VectorClock clock;  ///< clock of the stream's latest operation
    };

    State() { slot_of(OrderEntry::host, "the host"); }

    std::size_t slot_of(int stream, const std::string& name) {
        const auto [found, fresh] = slots.try_emplace(stream, streams.size());
        if (fresh) streams.push_back({name, {}});
        return found->second;
    }

    std::size_t number_of(const std::string& what) {
        const auto [found, fresh] = numbers.try_emplace(what, names.size());
        if (fresh) names.push_back(what);
        return found->second;
    }

    /// The latest entry that this access should have waited for.
    void find_conflict(const Access& access, const VectorClock& clock, std::optional<Conflict>& worst) const;
    OrderViolation violation(const OrderEntry& entry, std::size_t slot, const Conflict& conflict) const;
    std::optional<OrderViolation> work(const OrderEntry& entry, std::size_t slot);

    std::size_t entries = 0;
    std::unordered_map<int, std::size_t> slots;  ///< index of a stream id in `streams`; the host has 0
    std::vector<StreamState> streams;
    std::unordered_map<std::uint64_t, VectorClock> events;  ///< clock at an event's latest record
    MemoryMap memory;
    std::unordered_map<std::string, std::size_t> numbers;
    std::vector<std::string> names;
};

void OrderChecker::State::find_conflict(const Access& access, const VectorClock& clock,
                                        std::optional<Conflict>& worst) const {
    if (access.bytes == 0) return;
    const auto begin = reinterpret_cast<std::uintptr_t>(access.address);
    const std::uintptr_t end = begin + access.bytes;
    const auto consider = [&](const Epoch& epoch, bool writes, std::uintptr_t from, std::uintptr_t to) {
        if (epoch.before(clock) || (worst && epoch.entry < worst->earlier.entry)) return;
        if (worst && epoch.entry == worst->earlier.entry && worst->access == &access &&
            worst->earlier_writes == writes && worst->end == from) {
            worst->end = to;  // the next piece of the same range
        } else if (!worst || epoch.entry > worst->earlier.entry) {
            worst = Conflict{epoch, writes, from, to, &access};
        }
    };
    for (auto range = first_above(memory, begin); range != memory.end() && range->first < end; ++range) {
        const std::uintptr_t from = std::max(begin, range->first);
        const std::uintptr_t to = std::min(end, range->second.end);
        if (range->second.write) consider(*range->second.write, true, from, to);
        if (access.mode != Access::Mode::write) continue;
        for (const Epoch& read : range->second.reads) consider(read, false, from, to);
    }
}

OrderViolation OrderChecker::State::violation(const OrderEntry& entry, std::size_t slot,
                                              const Conflict& conflict) const {
    const Epoch& earlier = conflict.earlier;
    const std::string& first = streams[earlier.slot].name;
    const std::string& second = streams[slot].name;
    const VectorClock& clock = streams[slot].clock;
    const std::uint64_t seen = earlier.slot < clock.size() ? clock[earlier.slot] : 0;
    const bool by_host = slot == 0;

    OrderViolation result;
    result.earlier = earlier.entry;
    result.later = entries;
    result.address = reinterpret_cast<const void*>(conflict.begin);
    result.bytes = conflict.end - conflict.begin;
    result.text = fmt::format(
        "missing wait: '{}' of {} {} {}, which '{}' of {} may still be {}; {} (it has waited for {} of the first {} "
        "operations of {})",
        entry.what, second, conflict.access->mode == Access::Mode::write ? "writes" : "reads",
        describe_memory(conflict), names[earlier.what], first, conflict.earlier_writes ? "writing" : "reading",
        by_host ? fmt::format("the host must synchronize with {} first", first)
                : fmt::format("record an event on {} after '{}' and let {} wait for it before '{}'", first,
                              names[earlier.what], second, entry.what),
        seen, earlier.count, first);
    return result;
}

std::optional<OrderViolation> OrderChecker::State::work(const OrderEntry& entry, std::size_t slot) {
    VectorClock& clock = streams[slot].clock;
    std::optional<Conflict> worst;
    for (const Access& access : entry.accesses) find_conflict(access, clock, worst);
    if (worst) return violation(entry, slot, *worst);

    const Epoch epoch{slot, ++clock[slot], entries, number_of(entry.what)};
    for (const bool writing : {false, true}) {  // a write includes the reads of the same entry
        for (const Access& access : entry.accesses) {
            if (access.bytes == 0 || (access.mode == Access::Mode::write) != writing) continue;
            const auto begin = reinterpret_cast<std::uintptr_t>(access.address);
            (writing ? note_write : note_read)(memory, begin, begin + access.bytes, epoch);
        }
    }
    return std::nullopt;
}

OrderChecker::OrderChecker() : state_(std::make_unique<State>()) {}
OrderChecker::~OrderChecker() = default;
OrderChecker::OrderChecker(const OrderChecker& other)
    : state_(std::make_unique<State>(detail::content_of(other.state_, "OrderChecker"))) {}
OrderChecker& OrderChecker::operator=(const OrderChecker& other) {
    state_ = std::make_unique<State>(detail::content_of(other.state_, "OrderChecker"));
    return *this;
}
OrderChecker::OrderChecker(OrderChecker&&) noexcept = default;
OrderChecker& OrderChecker::operator=(OrderChecker&&) noexcept = default;

std::optional<OrderViolation> OrderChecker::append(const OrderEntry& entry) {
    State& state = detail::content_of(state_, "OrderChecker");
    const std::size_t slot = state.slot_of(entry.stream, entry.stream_name);
    VectorClock& clock = state.streams[slot].clock;
    if (clock.size() < state.streams.size()) clock.resize(state.streams.size());
    join(clock, state.streams[0].clock);  // enqueued by the host: after everything that it has done and waited for

    std::optional<OrderViolation> violation;
    switch (entry.kind) {
        case OrderEntry::Kind::work: violation = state.work(entry, slot); break;
        case OrderEntry::Kind::record: state.events[entry.event] = clock; break;
        case OrderEntry::Kind::wait:
            if (const auto event = state.events.find(entry.event); event != state.events.end())
                join(clock, event->second);
            break;
        case OrderEntry::Kind::wait_stream:
            if (const auto other = state.slots.find(entry.other); other != state.slots.end())
                join(clock, state.streams[other->second].clock);
            break;
    }
    ++state.entries;
    return violation;
}

}  // namespace lockstep
