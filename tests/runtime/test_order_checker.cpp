// The ordering checker against logs with known answers and against the brute-force oracle.
#include "lockstep/runtime/order_checker.h"

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/reference/order_oracle.h"

using namespace lockstep;
using reference::OrderOracle;
using reference::UnorderedPair;

namespace {

/// An address that is only named, never accessed.
const void* at(std::uintptr_t byte) { return reinterpret_cast<const void*>(0x10000 + byte); }
Access reads(std::uintptr_t from, std::size_t bytes) { return {at(from), bytes, Device::cpu(0), Access::Mode::read}; }
Access writes(std::uintptr_t from, std::size_t bytes) { return {at(from), bytes, Device::cpu(0), Access::Mode::write}; }
Access peer_reads(std::uintptr_t from, std::size_t bytes) {
    return {at(from), bytes, Device::cpu(0), Access::Mode::peer_read};
}

OrderEntry entry(OrderEntry::Kind kind, int stream) {
    OrderEntry made;
    made.kind = kind;
    made.stream = stream;
    made.stream_name = "s" + std::to_string(stream);
    return made;
}
OrderEntry work(int stream, std::vector<Access> accesses, std::string what = "work") {
    OrderEntry made = entry(OrderEntry::Kind::work, stream);
    made.what = std::move(what);
    made.accesses = std::move(accesses);
    return made;
}
OrderEntry record(int stream, std::uint64_t event) {
    OrderEntry made = entry(OrderEntry::Kind::record, stream);
    made.event = event;
    return made;
}
OrderEntry wait(int stream, std::uint64_t event) {
    OrderEntry made = entry(OrderEntry::Kind::wait, stream);
    made.event = event;
    return made;
}
OrderEntry host_waits_for(int stream) {
    OrderEntry made = entry(OrderEntry::Kind::wait_stream, OrderEntry::host);
    made.other = stream;
    return made;
}

constexpr int memory_bytes = 48;

/// A random log, usually with violations.
std::vector<OrderEntry> random_log(std::uint32_t seed, int streams, int length) {
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

/// An ordered schedule: before each piece of work, its stream waits for all earlier conflicting uses of these bytes, by
/// an event of the other stream (one per stream, recorded repeatedly, or a new one) or by the host.
std::vector<OrderEntry> ordered_log(std::uint32_t seed, int streams, int pieces, int bytes_of_memory = memory_bytes) {
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

using Log = std::vector<OrderEntry>;

std::optional<UnorderedPair> checked(const Log& log) {
    OrderChecker checker;
    for (const OrderEntry& entry : log)
        if (const auto violation = checker.append(entry)) return UnorderedPair{violation->earlier, violation->later};
    return std::nullopt;
}

/// Result of the checker, after comparison with the oracle.
std::optional<UnorderedPair> agreed(const Log& log) {
    const auto pair = checked(log);
    CHECK(pair == OrderOracle(log).first_unordered());
    return pair;
}

bool in_order(const Log& log) { return !agreed(log); }

std::string message(const Log& log) {
    OrderChecker checker;
    for (const OrderEntry& entry : log)
        if (const auto violation = checker.append(entry)) return violation->text;
    return {};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("three kinds of conflict between streams are found") {
    CHECK(agreed({work(0, {writes(0, 8)}), work(1, {reads(4, 8)})}) == UnorderedPair{0, 1});
    CHECK(agreed({work(0, {reads(0, 8)}), work(1, {writes(4, 8)})}) == UnorderedPair{0, 1});
    CHECK(agreed({work(0, {writes(0, 8)}), work(1, {writes(7, 1)})}) == UnorderedPair{0, 1});
    CHECK(agreed({work(0, {writes(0, 8)}), work(1, {peer_reads(0, 8)})}) == UnorderedPair{0, 1});
}

TEST_CASE("accesses that do not conflict need no wait") {
    CHECK(in_order({work(0, {reads(0, 8)}), work(1, {reads(0, 8)})}));
    CHECK(in_order({work(0, {writes(0, 8)}), work(1, {writes(8, 8)})}));
    CHECK(in_order({work(0, {writes(0, 8)}), work(0, {reads(0, 8), writes(0, 8)})}));
    CHECK(in_order({work(0, {writes(0, 8)}), work(1, {writes(4, 0)})}));
    CHECK(in_order({work(0, {reads(0, 8), writes(4, 8), reads(0, 12)})}));
}

TEST_CASE("record and wait order accesses") {
    CHECK(in_order({work(0, {writes(0, 8)}), record(0, 1), wait(1, 1), work(1, {reads(0, 8)})}));
    SECTION("through a third stream") {
        CHECK(in_order(
            {work(0, {writes(0, 8)}), record(0, 1), wait(2, 1), record(2, 2), wait(1, 2), work(1, {writes(0, 8)})}));
    }
    SECTION("a record before the work does not cover it") {
        CHECK(agreed({record(0, 1), work(0, {writes(0, 8)}), wait(1, 1), work(1, {reads(0, 8)})}) ==
              UnorderedPair{1, 3});
    }
    SECTION("a wait applies to the latest record before it, not to one after it") {
        CHECK(agreed({record(0, 1), wait(1, 1), work(0, {writes(0, 8)}), record(0, 1), work(1, {reads(0, 8)})}) ==
              UnorderedPair{2, 4});
        CHECK(in_order({record(0, 1), work(0, {writes(0, 8)}), record(0, 1), wait(1, 1), work(1, {reads(0, 8)})}));
    }
    SECTION("an event recorded again on another stream no longer covers the first") {
        CHECK(agreed({work(0, {writes(0, 8)}), record(0, 1), record(2, 1), wait(1, 1), work(1, {reads(0, 8)})}) ==
              UnorderedPair{0, 4});
    }
    SECTION("a wait for an event that was never recorded has no effect") {
        CHECK(agreed({work(0, {writes(0, 8)}), wait(1, 1), work(1, {reads(0, 8)})}) == UnorderedPair{0, 2});
    }
    SECTION("a write must wait for all readers") {
        CHECK(agreed({work(0, {reads(0, 8)}), work(2, {reads(0, 8)}), record(2, 1), wait(1, 1),
                      work(1, {writes(0, 8)})}) == UnorderedPair{0, 4});
    }
}

TEST_CASE("the host orders work that it enqueues after a wait") {
    CHECK(in_order({work(0, {writes(0, 8)}), host_waits_for(0), work(1, {reads(0, 8)})}));
    CHECK(in_order({work(0, {writes(0, 8)}), record(0, 1), wait(OrderEntry::host, 1), work(1, {reads(0, 8)})}));
    CHECK(in_order({work(0, {writes(0, 8)}), host_waits_for(0), work(OrderEntry::host, {reads(0, 8)})}));
    SECTION("immediate work of the host precedes all that it enqueues later") {
        CHECK(in_order({work(OrderEntry::host, {writes(0, 8)}), work(1, {reads(0, 8)})}));
        CHECK(in_order({work(OrderEntry::host, {reads(0, 8)}), work(1, {writes(0, 8)}), work(1, {writes(0, 8)})}));
    }
    SECTION("the host itself must wait before it accesses memory that a stream uses") {
        CHECK(agreed({work(0, {reads(0, 8)}), work(OrderEntry::host, {writes(0, 8)})}) == UnorderedPair{0, 1});
        CHECK(contains(message({work(0, {reads(0, 8)}), work(OrderEntry::host, {writes(0, 8)})}),
                       "the host must synchronize with s0"));
    }
    SECTION("waiting for one stream does not cover another") {
        CHECK(agreed({work(0, {writes(0, 8)}), host_waits_for(2), work(1, {reads(0, 8)})}) == UnorderedPair{0, 2});
    }
}

TEST_CASE("a freed block that another stream gets without a wait is a conflict of its two users") {
    const Log log = {work(0, {writes(0, 16)}, "relu"), work(0, {reads(0, 16)}, "sum"),  // freed, and reused by stream 1
                     work(1, {writes(0, 16)}, "conv2d")};
    CHECK(agreed(log) == UnorderedPair{1, 2});
    const std::string text = message(log);
    CHECK(contains(text, "'conv2d' of s1 writes"));
    CHECK(contains(text, "'sum' of s0 may still be reading"));
}

TEST_CASE("the message names operations, streams, memory and the missing wait") {
    order_check::set_checking(true);
    order_check::name_memory(at(0), 64, "arena");
    order_check::name_memory(at(16), 16, "parameters of cpu:1");
    const std::string text =
        message({work(0, {writes(0, 8)}, "first"), record(0, 1), work(0, {writes(0, 40)}, "broadcast"), wait(1, 1),
                 work(1, {reads(16, 8)}, "linear")});
    CHECK(text ==
          "missing wait: 'linear' of s1 reads 'parameters of cpu:1' (8 bytes at 0x10010 on cpu:0), which 'broadcast' "
          "of s0 may still be writing; record an event on s0 after 'broadcast' and let s1 wait for it before "
          "'linear' (it has waited for 1 of the first 2 operations of s0)");
    CHECK(order_check::memory_name(at(15)) == "arena");
    CHECK(order_check::memory_name(at(31)) == "parameters of cpu:1");
    CHECK(order_check::memory_name(at(32)) == "arena");
    CHECK(order_check::memory_name(at(64)).empty());
    order_check::set_checking(false);
}

TEST_CASE("an entry that violates the order is not remembered") {
    OrderChecker checker;
    CHECK_FALSE(checker.append(work(0, {writes(0, 8)})));
    CHECK(checker.append(work(1, {reads(0, 8), writes(100, 8)})));
    CHECK_FALSE(checker.append(work(2, {writes(100, 8)})));
    CHECK_FALSE(checker.append(work(0, {writes(0, 8)})));
}

TEST_CASE("the range named by a violation is the one that both access") {
    OrderChecker checker;
    checker.append(work(0, {writes(0, 32)}));
    checker.append(work(0, {reads(12, 4)}));
    const auto violation = checker.append(work(1, {reads(8, 100)}));
    REQUIRE(violation);
    CHECK(violation->address == at(8));
    CHECK(violation->bytes == 24);
}

TEST_CASE("checker and oracle agree on random logs") {
    int unordered = 0;
    for (std::uint32_t seed = 0; seed < 6000; ++seed) {
        const Log log = random_log(seed, 2 + static_cast<int>(seed % 4), 10 + static_cast<int>(seed % 50));
        const auto expected = OrderOracle(log).first_unordered();
        if (checked(log) != expected) FAIL("seed " << seed);
        unordered += expected ? 1 : 0;
    }
    CHECK(unordered > 1000);
    CHECK(unordered < 5900);
}

TEST_CASE("checker and oracle agree on schedules with removed waits") {
    int unordered = 0;
    for (std::uint32_t seed = 0; seed < 2000; ++seed) {
        Log log = ordered_log(seed, 2 + static_cast<int>(seed % 5), 60);
        if (checked(log) || OrderOracle(log).first_unordered())
            FAIL("seed " << seed << ": out of order before any change");
        std::mt19937 random(seed);
        for (OrderEntry& entry : log)
            if (entry.kind != OrderEntry::Kind::work && random() % 40 == 0) entry = work(entry.stream, {});
        const auto expected = OrderOracle(log).first_unordered();
        if (checked(log) != expected) FAIL("seed " << seed);
        unordered += expected ? 1 : 0;
    }
    CHECK(unordered > 500);
}

TEST_CASE("each wait of a schedule is removed in turn") {
    std::size_t waits = 0, needed = 0;
    for (std::uint32_t seed = 0; seed < 200; ++seed) {
        const auto result = reference::remove_every_wait(ordered_log(seed, 2 + static_cast<int>(seed % 5), 50));
        if (!result.disagreement.empty()) FAIL("seed " << seed << ": " << result.disagreement);
        waits += result.waits;
        needed += result.needed;
    }
    CHECK(needed > 1000);
    CHECK(needed < waits);  // some are covered by others
}

TEST_CASE("a removed wait agrees with the oracle on the log without it") {
    const Log log = ordered_log(7, 4, 40);
    OrderOracle oracle(log);
    for (std::size_t i = 0; i < log.size(); ++i) {
        if (log[i].kind != OrderEntry::Kind::wait && log[i].kind != OrderEntry::Kind::wait_stream) continue;
        Log without = log;
        without[i] = work(log[i].stream, {});
        CHECK(oracle.first_unordered_without(i) == OrderOracle(without).first_unordered());
        const auto pairs = OrderOracle(without).unordered_pairs();
        CHECK(pairs.empty() == !OrderOracle(without).first_unordered());
    }
}

TEST_CASE("remove_every_wait reports if a log is out of order to begin with") {
    const auto result = reference::remove_every_wait({work(0, {writes(0, 8)}), work(1, {reads(0, 8)})});
    CHECK(contains(result.disagreement, "violates the order"));
}

TEST_CASE("live: enqueues are checked and recorded") {
    const Access write[] = {writes(0, 8)};
    const Access read[] = {reads(0, 8)};
    order_check::set_checking(true);
    CHECK(order_check::enabled());
    order_check::start_recording();
    CHECK_THROWS_AS(order_check::start_recording(), InvalidArgument);
    order_check::on_work(5, "cpu:0/compute0", "relu", write);
    CHECK_THROWS_AS(order_check::on_work(6, "cpu:1/compute0", "sum", read), OrderError);
    order_check::on_record(5, "cpu:0/compute0", 9);
    order_check::on_wait(6, "cpu:1/compute0", 9);
    order_check::on_work(6, "cpu:1/compute0", "sum", read);
    CHECK_THROWS_AS(order_check::on_work(4, "host/compute0", "print", write), OrderError);
    order_check::on_host_wait_stream(4);  // the host waits for itself
    CHECK_THROWS_AS(order_check::on_work(4, "host/compute0", "print", write), OrderError);
    order_check::on_host_wait_stream(6);
    order_check::on_work(4, "host/compute0", "print", write);
    order_check::on_host_wait_event(9);
    const Log log = order_check::take_recording();
    CHECK_THROWS_AS(order_check::take_recording(), InvalidArgument);
    order_check::set_checking(false);
    CHECK_FALSE(order_check::enabled());

    REQUIRE(log.size() == 7);
    CHECK(log[0].what == "relu");
    CHECK(log[0].stream == 5);
    CHECK(log[3].accesses.size() == 1);
    CHECK(log[4].kind == OrderEntry::Kind::wait_stream);
    CHECK(log[5].stream == OrderEntry::host);
    CHECK(in_order(log));
    CHECK(reference::remove_every_wait(log).disagreement.empty());
    CHECK(reference::remove_every_wait(log).needed == 2);
}

TEST_CASE("live: streams report their work and reject work that lacks a wait") {
    order_check::set_checking(true);
    Stream& first = Stream::of(Device::cpu(0));
    Stream& second = Stream::of(Device::cpu(1));
    std::vector<float> memory(16, 0.0f), copy(16, 0.0f);
    const std::size_t bytes = memory.size() * sizeof(float);
    const Access write[] = {{memory.data(), bytes, Device::cpu(0), Access::Mode::write}};
    const auto copy_to_second = [&] { second.copy(copy.data(), Device::cpu(1), memory.data(), Device::cpu(0), bytes); };

    first.run("ones", write, [&](const ExecContext&) { memory.assign(16, 1.0f); });
    CHECK_THROWS_AS(copy_to_second(), OrderError);
    second.wait(first);
    CHECK_NOTHROW(copy_to_second());
    CHECK_THROWS_AS(first.fill(memory.data(), 0, bytes), OrderError);
    Event copied(Device::cpu(1));
    second.record(copied);
    SECTION("a wait of the stream") { first.wait(copied); }
    SECTION("a wait of the host for the event") { copied.synchronize(); }
    SECTION("a wait of the host for the stream") { second.synchronize(); }
    CHECK_NOTHROW(first.fill(memory.data(), 0, bytes));
    synchronize_all();
    order_check::set_checking(false);
    CHECK(memory[3] == 0.0f);
    CHECK(copy[3] == 1.0f);
}

TEST_CASE("live: a wait for failed work counts as a wait") {
    order_check::set_checking(true);
    Stream& first = Stream::of(Device::cpu(0));
    Stream& second = Stream::of(Device::cpu(1));
    std::vector<float> memory(16, 1.0f);
    const std::size_t bytes = memory.size() * sizeof(float);
    const Access read[] = {{memory.data(), bytes, Device::cpu(1), Access::Mode::read}};
    second.run("fails", read, [](const ExecContext&) { throw DeviceError("planted"); });
    CHECK_THROWS_AS(second.synchronize(), DeviceError);
    CHECK_NOTHROW(first.fill(memory.data(), 0, bytes));
    synchronize_all();
    order_check::set_checking(false);
}

TEST_CASE("a log can be recorded without checking") {
    const Access write[] = {writes(0, 8)};
    order_check::start_recording();
    CHECK(order_check::enabled());
    order_check::on_work(5, "cpu:0/compute0", "relu", write);
    order_check::on_work(6, "cpu:1/compute0", "gelu", write);
    CHECK(agreed(order_check::take_recording()) == UnorderedPair{0, 1});
}

TEST_CASE("each wait is removed from a log as long as that of a training step") {
    const auto result = reference::remove_every_wait(ordered_log(1, 8, 1000, 3000));
    CHECK(result.disagreement.empty());
    CHECK(result.waits > 1000);
    CHECK(result.needed > 10);
}
