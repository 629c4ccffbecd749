// Calls that the host makes itself in the middle of a schedule: after the preceding work of their stream, and when all
// work that does not wait for them has been enqueued.
#include <algorithm>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/schedule/instance.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;

namespace {

Stream& compute() { return Stream::of(Device::cpu(0)); }
Stream& other() { return Stream::of(Device::cpu(1)); }
Stream& exchange() { return Stream::of(Device::cpu(0), StreamRole::collective); }
Stream& commit() { return Stream::of(Device::cpu(0), StreamRole::commit); }

/// Names of the executed calls, in order.
class Log {
public:
    CallSpec on_device(const std::string& name) {
        return {.name = name, .function = [this, name] { add(name); }};
    }
    CallSpec by_host(const std::string& name) {
        return {.name = name,
                .function = [this, name] { add(name + " by " + (on_host() ? "the host" : "another")); },
                .by_host = true};
    }
    std::vector<std::string> lines() const {
        const std::scoped_lock lock(mutex_);
        return lines_;
    }
    std::size_t place(const std::string& line) const {
        const auto all = lines();
        return static_cast<std::size_t>(std::find(all.begin(), all.end(), line) - all.begin());
    }
    void add(const std::string& line) {
        const std::scoped_lock lock(mutex_);
        lines_.push_back(line);
    }

private:
    bool on_host() const { return std::this_thread::get_id() == host_; }
    std::thread::id host_ = std::this_thread::get_id();
    mutable std::mutex mutex_;
    std::vector<std::string> lines_;
};

/// Two exchanges, each after a piece of work, while other work continues. Work that needs the first one's result waits
/// for it.
void place(Schedule& schedule, Log& log, bool by_host) {
    const auto call = [&](const std::string& name) { return by_host ? log.by_host(name) : log.on_device(name); };
    schedule.call(compute(), log.on_device("first work"));
    schedule.wait(exchange(), schedule.record(compute()));
    schedule.call(exchange(), call("first exchange"));
    const int exchanged = schedule.record(exchange());
    schedule.call(compute(), log.on_device("second work"));
    schedule.wait(other(), exchanged);
    schedule.call(other(), log.on_device("work that needs the exchange"));
    schedule.wait(exchange(), schedule.record(compute()));
    schedule.call(exchange(), call("second exchange"));
    schedule.call(compute(), log.on_device("third work"));
    schedule.wait(commit(), schedule.record(exchange()));
    schedule.call(commit(), log.on_device("commit"));
}

void run(Schedule& schedule, Phase phase) { Instance(schedule, {}).enqueue(schedule, 0, schedule.size(), phase); }

void rest() {
    for (Stream* stream : {&compute(), &other(), &exchange(), &commit()}) stream->synchronize();
}

}  // namespace

TEST_CASE("the host makes its calls in stream order, before the work that waits for them") {
    Log log;
    Schedule schedule;
    place(schedule, log, true);
    schedule.put_off_calls(0, schedule.size());
    for (int round = 0; round < 20; ++round) {
        run(schedule, Phase::work);
        run(schedule, Phase::commit);
        rest();
        const auto lines = log.lines();
        REQUIRE(lines.size() == 7u * static_cast<std::size_t>(round + 1));
        Log last;
        for (std::size_t i = lines.size() - 7; i < lines.size(); ++i) last.add(lines[i]);
        CHECK(last.place("first work") < last.place("first exchange by the host"));
        CHECK(last.place("second work") < last.place("second exchange by the host"));
        CHECK(last.place("first exchange by the host") < last.place("second exchange by the host"));
        CHECK(last.place("first exchange by the host") < last.place("work that needs the exchange"));
        CHECK(last.place("second exchange by the host") < last.place("commit"));
        CHECK(last.place("third work") < 7);
    }
}

TEST_CASE("devices have all other work before the host makes its first call") {
    for (const bool put_off : {true, false}) {
        Log log;
        Schedule schedule;
        bool has_all = false;
        schedule.call(compute(), log.on_device("first work"));
        schedule.wait(exchange(), schedule.record(compute()));
        schedule.call(exchange(), {.name = "exchange",
                                   .function =
                                       [&] {  // the device continues by itself, or never reaches its second piece
                                           const auto end = std::chrono::steady_clock::now() +
                                                            (put_off ? test::hang : std::chrono::milliseconds(300));
                                           while (!has_all && std::chrono::steady_clock::now() < end)
                                               has_all = log.place("second work") < log.lines().size();
                                       },
                                   .by_host = true});
        schedule.call(compute(), log.on_device("second work"));
        if (put_off) schedule.put_off_calls(0, schedule.size());
        run(schedule, Phase::work);
        rest();
        CHECK(has_all == put_off);
    }
}

TEST_CASE("without host calls the schedule is unchanged") {
    Log log;
    Schedule schedule, same;
    place(schedule, log, false);
    place(same, log, false);
    schedule.put_off_calls(0, schedule.size());
    REQUIRE(schedule.size() == same.size());
    for (std::size_t i = 0; i < same.size(); ++i) {
        CHECK(schedule.commands()[i].kind == same.commands()[i].kind);
        CHECK(schedule.commands()[i].stream == same.commands()[i].stream);
        CHECK(schedule.commands()[i].index == same.commands()[i].index);
    }
}

TEST_CASE("an exception in a host call reaches the enqueuing thread, and nothing is enqueued after it") {
    Log log;
    Schedule schedule;
    schedule.call(exchange(), {.name = "bad", .function = [] { throw std::runtime_error("lost"); }, .by_host = true});
    schedule.call(exchange(), log.on_device("after"));
    schedule.put_off_calls(0, schedule.size());
    CHECK_THROWS_WITH(run(schedule, Phase::work), "lost");
    rest();
    CHECK(log.lines().empty());
}
