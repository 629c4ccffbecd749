// The ordering checker against logs with known answers and against the brute-force oracle.
#include "lockstep/runtime/order_checker.h"

#include "lockstep/tests/catch.h"
#include "lockstep/tests/reference/order_oracle.h"
#include "lockstep/tests/runtime/order_logs.h"

using namespace lockstep;
using namespace lockstep::order_logs;
using reference::OrderOracle;
using reference::UnorderedPair;

namespace {

using Log = std::vector<OrderEntry>;

std::optional<UnorderedPair> checked(const Log& log) {
    OrderChecker checker;
    for (const OrderEntry& entry : log)
        if (const auto violation = checker.append(entry)) return UnorderedPair{violation->earlier, violation->later};
    return std::nullopt;
}

/// What the checker says, once the oracle has said the same.
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

TEST_CASE("what does not conflict needs no wait") {
    CHECK(in_order({work(0, {reads(0, 8)}), work(1, {reads(0, 8)})}));
    CHECK(in_order({work(0, {writes(0, 8)}), work(1, {writes(8, 8)})}));
    CHECK(in_order({work(0, {writes(0, 8)}), work(0, {reads(0, 8), writes(0, 8)})}));
    CHECK(in_order({work(0, {writes(0, 8)}), work(1, {writes(4, 0)})}));
    CHECK(in_order({work(0, {reads(0, 8), writes(4, 8), reads(0, 12)})}));
}

TEST_CASE("record and wait order") {
    CHECK(in_order({work(0, {writes(0, 8)}), record(0, 1), wait(1, 1), work(1, {reads(0, 8)})}));
    SECTION("through a third stream") {
        CHECK(in_order(
            {work(0, {writes(0, 8)}), record(0, 1), wait(2, 1), record(2, 2), wait(1, 2), work(1, {writes(0, 8)})}));
    }
    SECTION("a record before the work does not cover it") {
        CHECK(agreed({record(0, 1), work(0, {writes(0, 8)}), wait(1, 1), work(1, {reads(0, 8)})}) ==
              UnorderedPair{1, 3});
    }
    SECTION("a wait means the latest record before it, not one after it") {
        CHECK(agreed({record(0, 1), wait(1, 1), work(0, {writes(0, 8)}), record(0, 1), work(1, {reads(0, 8)})}) ==
              UnorderedPair{2, 4});
        CHECK(in_order({record(0, 1), work(0, {writes(0, 8)}), record(0, 1), wait(1, 1), work(1, {reads(0, 8)})}));
    }
    SECTION("an event that moved to another stream no longer stands for the first") {
        CHECK(agreed({work(0, {writes(0, 8)}), record(0, 1), record(2, 1), wait(1, 1), work(1, {reads(0, 8)})}) ==
              UnorderedPair{0, 4});
    }
    SECTION("a wait for an event never recorded is no wait") {
        CHECK(agreed({work(0, {writes(0, 8)}), wait(1, 1), work(1, {reads(0, 8)})}) == UnorderedPair{0, 2});
    }
    SECTION("all readers must be waited for before a write") {
        CHECK(agreed({work(0, {reads(0, 8)}), work(2, {reads(0, 8)}), record(2, 1), wait(1, 1),
                      work(1, {writes(0, 8)})}) == UnorderedPair{0, 4});
    }
}

TEST_CASE("the host orders what it enqueues after it has waited") {
    CHECK(in_order({work(0, {writes(0, 8)}), host_waits_for(0), work(1, {reads(0, 8)})}));
    CHECK(in_order({work(0, {writes(0, 8)}), record(0, 1), wait(OrderEntry::host, 1), work(1, {reads(0, 8)})}));
    CHECK(in_order({work(0, {writes(0, 8)}), host_waits_for(0), work(OrderEntry::host, {reads(0, 8)})}));
    SECTION("work that the host does at once comes before all that it enqueues later") {
        CHECK(in_order({work(OrderEntry::host, {writes(0, 8)}), work(1, {reads(0, 8)})}));
        CHECK(in_order({work(OrderEntry::host, {reads(0, 8)}), work(1, {writes(0, 8)}), work(1, {writes(0, 8)})}));
    }
    SECTION("the host itself has to wait before it touches what a stream uses") {
        CHECK(agreed({work(0, {reads(0, 8)}), work(OrderEntry::host, {writes(0, 8)})}) == UnorderedPair{0, 1});
        CHECK(contains(message({work(0, {reads(0, 8)}), work(OrderEntry::host, {writes(0, 8)})}),
                       "the host must synchronize with s0"));
    }
    SECTION("waiting for one stream says nothing of another") {
        CHECK(agreed({work(0, {writes(0, 8)}), host_waits_for(2), work(1, {reads(0, 8)})}) == UnorderedPair{0, 2});
    }
}

TEST_CASE("a freed block that another stream gets without a wait is a conflict of its two users") {
    const Log log = {work(0, {writes(0, 16)}, "relu"), work(0, {reads(0, 16)}, "sum"),  // freed, and taken for stream 1
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

TEST_CASE("the range that a violation names is what both touch") {
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

TEST_CASE("checker and oracle agree on schedules that lost some of their waits") {
    int unordered = 0;
    for (std::uint32_t seed = 0; seed < 2000; ++seed) {
        Log log = ordered_log(seed, 2 + static_cast<int>(seed % 5), 60);
        if (checked(log) || OrderOracle(log).first_unordered()) FAIL("seed " << seed << ": not in order as made");
        std::mt19937 random(seed);
        for (OrderEntry& entry : log)
            if (entry.kind != OrderEntry::Kind::work && random() % 40 == 0) entry = work(entry.stream, {});
        const auto expected = OrderOracle(log).first_unordered();
        if (checked(log) != expected) FAIL("seed " << seed);
        unordered += expected ? 1 : 0;
    }
    CHECK(unordered > 500);
}

TEST_CASE("every wait of a schedule removed in turn") {
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

TEST_CASE("a removed wait gives what the oracle says of the log without it") {
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

TEST_CASE("remove_every_wait tells when a log is out of order to begin with") {
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

TEST_CASE("live: streams report what they are given, and refuse what lacks a wait") {
    order_check::set_checking(true);
    Stream& first = Stream::of(Device::cpu(0));
    Stream& second = Stream::of(Device::cpu(1));
    std::vector<float> memory(16, 0.0f), copy(16, 0.0f);
    const std::size_t bytes = memory.size() * sizeof(float);
    const Access write[] = {{memory.data(), bytes, Device::cpu(0), Access::Mode::write}};
    const auto copy_to_second = [&] { second.copy(copy.data(), Device::cpu(1), memory.data(), Device::cpu(0), bytes); };

    first.run("ones", write, [&](const Launch&) { memory.assign(16, 1.0f); });
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

TEST_CASE("live: who has waited for work that failed has waited") {
    order_check::set_checking(true);
    Stream& first = Stream::of(Device::cpu(0));
    Stream& second = Stream::of(Device::cpu(1));
    std::vector<float> memory(16, 1.0f);
    const std::size_t bytes = memory.size() * sizeof(float);
    const Access read[] = {{memory.data(), bytes, Device::cpu(1), Access::Mode::read}};
    second.run("fails", read, [](const Launch&) { throw DeviceError("planted"); });
    CHECK_THROWS_AS(second.synchronize(), DeviceError);
    CHECK_NOTHROW(first.fill(memory.data(), 0, bytes));
    synchronize_all();
    order_check::set_checking(false);
}

TEST_CASE("a recording can be made without checking") {
    const Access write[] = {writes(0, 8)};
    order_check::start_recording();
    CHECK(order_check::enabled());
    order_check::on_work(5, "cpu:0/compute0", "relu", write);
    order_check::on_work(6, "cpu:1/compute0", "gelu", write);
    CHECK(agreed(order_check::take_recording()) == UnorderedPair{0, 1});
}

TEST_CASE("every wait removed from a log as long as a training step's") {
    const auto result = reference::remove_every_wait(ordered_log(1, 8, 1000, 3000));
    CHECK(result.disagreement.empty());
    CHECK(result.waits > 1000);
    CHECK(result.needed > 10);
}
