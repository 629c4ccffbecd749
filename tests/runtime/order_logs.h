// Logs for the tests of the ordering checker: short ones by hand, random ones from a seed.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/order_checker.h"

namespace lockstep::order_logs {

/// Memory that is only talked about, never touched.
inline const void* at(std::uintptr_t byte) { return reinterpret_cast<const void*>(0x10000 + byte); }
inline Access reads(std::uintptr_t from, std::size_t bytes) {
    return {at(from), bytes, Device::cpu(0), Access::Mode::read};
}
inline Access writes(std::uintptr_t from, std::size_t bytes) {
    return {at(from), bytes, Device::cpu(0), Access::Mode::write};
}
inline Access peer_reads(std::uintptr_t from, std::size_t bytes) {
    return {at(from), bytes, Device::cpu(0), Access::Mode::peer_read};
}

inline OrderEntry entry(OrderEntry::Kind kind, int stream) {
    OrderEntry made;
    made.kind = kind;
    made.stream = stream;
    made.stream_name = "s" + std::to_string(stream);
    return made;
}
inline OrderEntry work(int stream, std::vector<Access> accesses, std::string what = "work") {
    OrderEntry made = entry(OrderEntry::Kind::work, stream);
    made.what = std::move(what);
    made.accesses = std::move(accesses);
    return made;
}
inline OrderEntry record(int stream, std::uint64_t event) {
    OrderEntry made = entry(OrderEntry::Kind::record, stream);
    made.event = event;
    return made;
}
inline OrderEntry wait(int stream, std::uint64_t event) {
    OrderEntry made = entry(OrderEntry::Kind::wait, stream);
    made.event = event;
    return made;
}
inline OrderEntry host_waits_for(int stream) {
    OrderEntry made = entry(OrderEntry::Kind::wait_stream, OrderEntry::host);
    made.other = stream;
    return made;
}

constexpr int memory_bytes = 48;

/// Anything at all: mostly out of order.
inline std::vector<OrderEntry> random_log(std::uint32_t seed, int streams, int length) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    std::vector<OrderEntry> log;
    for (int i = 0; i < length; ++i) {
        const int stream = below(12) == 0 ? OrderEntry::host : below(streams);
        const int choice = below(10);
        if (choice < 3) {
            std::vector<Access> accesses;
            for (int n = below(3); n >= 0; --n) {
                const auto from = static_cast<std::uintptr_t>(below(memory_bytes));
                const auto bytes = static_cast<std::size_t>(below(6));
                accesses.push_back(below(3) == 0 ? writes(from, bytes)
                                   : below(2)    ? reads(from, bytes)
                                                 : peer_reads(from, bytes));
            }
            log.push_back(work(stream, std::move(accesses)));
        } else if (choice < 6) {
            log.push_back(record(stream, static_cast<std::uint64_t>(below(6))));
        } else if (choice < 9) {
            log.push_back(wait(stream, static_cast<std::uint64_t>(below(6))));
        } else {
            log.push_back(host_waits_for(below(streams)));
        }
    }
    return log;
}

/// A schedule in order: before each piece of work its stream waits for all that used these bytes before in a way that
/// conflicts, by an event of the other stream (one per stream, recorded again and again, or a fresh one) or by the
/// host.
inline std::vector<OrderEntry> ordered_log(std::uint32_t seed, int streams, int pieces,
                                           int bytes_of_memory = memory_bytes) {
    struct Byte {
        int writer = OrderEntry::host;
        std::set<int> readers;
    };
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    std::map<std::uintptr_t, Byte> memory;
    std::vector<OrderEntry> log;
    std::uint64_t fresh_event = 1000;
    for (int i = 0; i < pieces; ++i) {
        const int stream = below(streams);
        std::vector<Access> accesses;
        std::set<int> others;
        for (int n = below(3); n >= 0; --n) {
            const auto from = static_cast<std::uintptr_t>(below(bytes_of_memory));
            const auto bytes = static_cast<std::size_t>(1 + below(6));
            const bool writing = below(3) == 0;
            accesses.push_back(writing ? writes(from, bytes) : reads(from, bytes));
            for (std::uintptr_t byte = from; byte < from + bytes; ++byte) {
                others.insert(memory[byte].writer);
                if (writing) others.insert(memory[byte].readers.begin(), memory[byte].readers.end());
            }
        }
        for (const int other : others) {
            if (other == stream || other == OrderEntry::host) continue;
            if (below(8) == 0) {
                log.push_back(host_waits_for(other));
                continue;
            }
            const std::uint64_t event = below(2) ? static_cast<std::uint64_t>(other) : fresh_event++;
            log.push_back(record(other, event));
            log.push_back(wait(below(10) == 0 ? OrderEntry::host : stream, event));
        }
        for (const Access& access : accesses) {
            const auto from =
                reinterpret_cast<std::uintptr_t>(access.address) - reinterpret_cast<std::uintptr_t>(at(0));
            for (std::uintptr_t byte = from; byte < from + access.bytes; ++byte) {
                if (access.mode != Access::Mode::write) memory[byte].readers.insert(stream);
            }
        }
        for (const Access& access : accesses) {
            const auto from =
                reinterpret_cast<std::uintptr_t>(access.address) - reinterpret_cast<std::uintptr_t>(at(0));
            for (std::uintptr_t byte = from; byte < from + access.bytes; ++byte) {
                if (access.mode == Access::Mode::write) memory[byte] = {stream, {}};
            }
        }
        log.push_back(work(stream, std::move(accesses)));
    }
    return log;
}

}  // namespace lockstep::order_logs
