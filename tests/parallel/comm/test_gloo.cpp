// Process groups over Gloo: ranks are processes forked from the test, which meet in a file store.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/group/host_identity.h"
#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/parallel/comm/transport_exercise.h"
#include "lockstep/tests/parallel/comm/transport_trials.h"

using namespace lockstep;
using namespace lockstep::test;
using std::chrono::milliseconds;

namespace {

bool absent() {
    if (gloo_backend().make != nullptr) return false;
    std::printf("skipped: gloo: %s\n", gloo_backend().absence.c_str());
    return true;
}

std::unique_ptr<Transport> connect(const test::TemporaryDirectory& folder, int rank, int size, milliseconds timeout) {
    return gloo_backend().make({.rank = rank,
                                .size = size,
                                .store = std::make_shared<FileStore>(folder / "store", timeout),
                                .timeout = timeout,
                                .global_ranks = {},
                                .master_addr = {}});
}

using Body = std::function<Lines(std::unique_ptr<Transport>& transport, int rank)>;

/// The failures of all ranks, each of which runs `body`.
std::string failures_of(int size, const Body& body) {
    const test::TemporaryDirectory folder;
    ForkedRanks ranks(size, [&](int rank) {
        auto transport = connect(folder, rank, size, no_limit);
        return body(transport, rank);
    });
    return joined(ranks.finish());
}

/// The ways to wait for the others.
void wait_in(int how, Transport& transport, int rank, int size, Deadline deadline) {
    std::vector<float> data(1 << 18, 1.0f);
    switch (how) {
        case 0: transport.barrier(deadline); break;
        case 1: transport.all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum, deadline); break;
        case 2: transport.broadcast(data.data(), data.size() * sizeof(float), 1, deadline); break;
        default:
            const auto message = transport.receive(data.data(), 16, (rank + 1) % size, 1);
            while (!message->advance() && RunClock::now() < deadline) std::this_thread::yield();
            throw TransportError("the deadline has passed");
    }
}
constexpr int ways_to_wait = 4;

}  // namespace

TEST_CASE("every operation over Gloo") {
    if (absent()) return;
    const int size = GENERATE(2, 3, 4, 8);
    if (size > max_ranks) return;
    CHECK(failures_of(size, [&](auto& transport, int rank) {
              return exercise_transport(*transport, rank, size);
          }).empty());
}

TEST_CASE("all ranks get the same bits over Gloo, for any order of addition") {
    if (absent()) return;
    CHECK(failures_of(4, [](auto& transport, int rank) { return other_bits(*transport, rank); }).empty());
}

TEST_CASE("ranks fail at once if their peer exits, leaves or aborts") {
    if (absent()) return;
    const int how = GENERATE(range(0, ways_to_wait));
    const std::string end = GENERATE("kill", "exit", "destroy", "abort");
    INFO(end << ", waiting in way " << how);
    constexpr int size = 4;
    CHECK(failures_of(size, [&](auto& transport, int rank) -> Lines {
              transport->barrier(far_off());
              if (rank != 1) {
                  const std::string error = error_of([&] { wait_in(how, *transport, rank, size, far_off()); });
                  if (!contains(error, "clos")) return {error};
                  const std::string later = error_of([&] { transport->barrier(far_off()); });
                  transport.reset();
                  return unless(later, error);
              }
              std::this_thread::sleep_for(milliseconds(50));
              if (end == "kill") ::kill(::getpid(), SIGKILL);
              if (end == "exit") ::_exit(0);
              if (end == "destroy") transport.reset();
              if (end == "abort") transport->abort("had enough");
              if (transport) return unless(error_of([&] { transport->barrier(far_off()); }), "had enough");
              return {};
          }) == (end == "kill" ? "rank 1: ended by signal 9\n" : ""));
}

TEST_CASE("an error names every rank whose connection is closed") {
    if (absent()) return;
    const int size = GENERATE(3, 4);
    CHECK(failures_of(size, [&](auto& transport, int rank) -> Lines {
              transport->barrier(far_off());
              if (rank != 0) return {};
              while (transport->announced(7) != Transport::all_left) std::this_thread::yield();  // all have left
              float value = 0;
              const std::string error = error_of([&] { transport->receive(&value, sizeof value, 1, 1)->advance(); });
              return unless(error, size == 3 ? "rank 1 is closed, as is that to rank 2"
                                             : "rank 1 is closed, as are those to ranks 2, 3");
          }) == "");
}

TEST_CASE("abort ends an operation that waits in another thread") {
    if (absent()) return;
    CHECK(failures_of(2, [&](auto& transport, int rank) -> Lines {
              transport->barrier(far_off());
              if (rank == 1) return unless(error_of([&] { transport->barrier(far_off()); }), "closed");
              std::thread other([&] {
                  std::this_thread::sleep_for(milliseconds(50));
                  transport->abort("had enough");
              });
              float value = 1;
              const std::string error =
                  error_of([&] { transport->all_reduce(&value, 1, DType::f32, ReduceOp::sum, far_off()); });
              other.join();
              return unless(error, "had enough");
          }).empty());
}

TEST_CASE("a stopped rank is detected at the deadline, and leaving it is quick") {
    if (absent()) return;
    const int how = GENERATE(range(0, ways_to_wait));
    const test::TemporaryDirectory folder;
    constexpr int size = 3;
    ForkedRanks ranks(size, [&](int rank) -> Lines {
        auto transport = connect(folder, rank, size, no_limit);
        transport->barrier(far_off());
        if (rank == 1) ::kill(::getpid(), SIGSTOP);
        const std::string error = error_of([&] { wait_in(how, *transport, rank, size, in(1000)); });
        transport.reset();
        return contains(error, "deadline") || contains(error, "closed") ? Lines{} : Lines{error};
    });
    ranks.let_others_end({1});
    ranks.signal(1, SIGKILL);
    CHECK(joined(ranks.finish()) == "rank 1: ended by signal 9\n");
}

TEST_CASE("messages of a rank that leaves early are still delivered") {
    if (absent()) return;
    CHECK(failures_of(3, [](auto& transport, int rank) -> Lines {
              std::vector<unsigned char> data(std::size_t{12} << 20, static_cast<unsigned char>(rank + 1));
              if (rank == 0) {  // to rank 1, and gone
                  finish(*transport->send(data.data(), data.size(), 1, 5));
                  finish(*transport->send(data.data(), 100, 2, 5));
                  transport.reset();
                  return {};
              }
              std::vector<unsigned char> got(data.size());
              if (rank == 1) {
                  const auto message = transport->receive(got.data(), got.size(), 0, 5);
                  finish(*message);
                  std::this_thread::sleep_for(milliseconds(300));
                  finish(*transport->send(data.data(), data.size(), 2, 6));
                  return got == std::vector<unsigned char>(got.size(), 1) ? Lines{} : Lines{"other bytes"};
              }
              finish(*transport->receive(got.data(), got.size(), 1, 6));
              if (got != std::vector<unsigned char>(got.size(), 2)) return {"other bytes"};
              finish(*transport->receive(got.data(), 100, 0, 5));  // came while rank 0 was there
              return got[99] == 1 && got[100] == 2 ? Lines{} : Lines{"other bytes"};
          }).empty());
}

TEST_CASE("abandoned messages do not affect later ones") {
    if (absent()) return;
    const std::size_t bytes = GENERATE(std::size_t{100}, std::size_t{1} << 20);
    CHECK(failures_of(2, [&](auto& transport, int rank) -> Lines {
              std::vector<unsigned char> data(bytes, 7), got(bytes);
              const int other = 1 - rank;
              transport->receive(data.data(), bytes, other, 1);
              transport->receive(data.data(), bytes, Transport::any_source, 1);
              transport->barrier(far_off());
              const auto sent = transport->send(data.data(), bytes, other, 1);
              const auto received = transport->receive(got.data(), bytes, other, 1);
              finish(*received);
              finish(*sent);
              transport->barrier(far_off());
              return got == data ? Lines{} : Lines{"other bytes"};
          }).empty());
}

TEST_CASE("mismatched sizes of messages and reductions are errors and do not end the process") {
    if (absent()) return;
    CHECK(failures_of(2, [](auto& transport, int rank) -> Lines {
              std::vector<unsigned char> data(100);
              if (rank == 0)
                  return unless(error_of([&] {
                                    const auto message = transport->receive(data.data(), 50, 1, 1);
                                    finish(*message);
                                }),
                                "rank 1 sent 100 bytes; expected 50");
              const auto message = transport->send(data.data(), 100, 0, 1);
              return unless(error_of([&] { transport->barrier(far_off()); }), "closed");
          }).empty());
    CHECK(failures_of(3, [](auto& transport, int rank) -> Lines {
              std::vector<float> data(rank == 0 ? 1000 : 10);
              const std::string error = error_of(
                  [&] { transport->all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum, in(500)); });
              return contains(error, "deadline") || contains(error, "closed") ? Lines{} : Lines{error};
          }).empty());
}

TEST_CASE("a missing rank is an error at the deadline") {
    if (absent()) return;
    const test::TemporaryDirectory folder;
    const std::string error = error_of([&] { auto never = connect(folder, 0, 2, milliseconds(500)); });
    CHECK(contains(error, "could not connect"));
}

TEST_CASE("a closed connection is a failure over Gloo, unless its rank has taken leave") {
    if (absent()) return;
    const std::string end = GENERATE("exit", "destroy");
    INFO(end);
    CHECK(failures_of(2, [&](auto& transport, int rank) -> Lines {
              transport->barrier(far_off());
              if (rank == 1) {
                  if (end == "exit") ::_exit(0);
                  return {};
              }
              if (!test::comes_true([&] { return transport->announced(7) == Transport::all_left; })) return {"open"};
              const std::string failure = transport->failure();
              if (end == "exit") return unless(failure, "the connection to rank 1 is closed");
              return failure.empty() ? Lines{} : Lines{failure};
          }).empty());
}

namespace {

/// The store of rank 1 of two. Rank 0 has published the same as rank 1, and an address at which it does not connect.
class StoreOfAbsentPeer final : public Store {
public:
    /// `port`: of rank 0's address. Gloo's ranks compare their addresses, which decides which one listens.
    explicit StoreOfAbsentPeer(unsigned char port) : port_(port) {}

    void set(std::string_view key, std::string_view value) override {
        const std::scoped_lock lock(mutex_);
        values_[std::string(key)] = value;
        std::string key_of_peer(key);
        key_of_peer.back() = '0';
        std::string& text = values_[key_of_peer] = value;
        const auto address = text.find(std::string_view("\x7f\0\0\1", 4));  // in a sockaddr_in, after the port
        if (address != std::string::npos) text[address - 2] = text[address - 1] = static_cast<char>(port_);
    }
    std::string get(std::string_view key, Milliseconds) override { return try_get(key).value_or(""); }
    std::optional<std::string> try_get(std::string_view key) override {
        const std::scoped_lock lock(mutex_);
        const auto found = values_.find(std::string(key));
        return found == values_.end() ? std::nullopt : std::optional(found->second);
    }
    std::int64_t add(std::string_view, std::int64_t) override { return 0; }
    std::string compare_set(std::string_view, std::string_view, std::string_view) override { return {}; }
    bool remove(std::string_view) override { return false; }
    std::int64_t count() override { return 0; }
    std::unique_ptr<Store> clone(Milliseconds) override { return nullptr; }
    Milliseconds time_limit() const override { return test::no_limit; }
    std::string describe() const override { return "store"; }

private:
    const unsigned char port_;
    std::mutex mutex_;
    std::map<std::string, std::string> values_;
};

}  // namespace

TEST_CASE("a rank that dies while the group is connected ends the wait for it") {
    if (absent()) return;
    const auto error_with = [](unsigned char port) {
        const auto store = std::make_shared<StoreOfAbsentPeer>(port);
        return error_of([&] {
            gloo_backend().make({.rank = 1, .size = 2, .store = store, .timeout = test::no_limit, .lost = [] {
                                     return std::string("rank 0 has died");
                                 }});
        });
    };
    const std::string low = error_with(0), high = error_with(0xff);
    INFO(low << '\n' << high);
    CHECK(contains(low, "could not connect to rank 0: "));
    CHECK(contains(high, "could not connect to rank 0: "));
    CHECK((contains(low, "rank 0 has died") || contains(high, "rank 0 has died")));
}

TEST_CASE("time in which a rank is stopped does not count while it is being connected") {
    if (absent()) return;
    constexpr milliseconds limit(1000);
    ForkedRanks ranks(1, [&](int) -> Lines {
        const auto store = std::make_shared<StoreOfAbsentPeer>(0xff);
        std::thread user([] {
            std::this_thread::sleep_for(milliseconds(200));  // usually it waits for its peer by then
            ::kill(::getpid(), SIGSTOP);
        });
        const auto begin = RunClock::now();
        const std::string error =
            error_of([&] { gloo_backend().make({.rank = 1, .size = 2, .store = store, .timeout = limit}); });
        const auto waited = RunClock::now() - begin;
        user.join();
        if (contains(error, "refused")) return {};  // in a version of Gloo in which the other rank listens
        if (waited < limit) return {"gave up early: " + error};
        return unless(error, "could not connect to rank 0: it did not connect before the deadline");
    });
    ranks.wait_until_stopped(0);
    std::this_thread::sleep_for(limit);
    ranks.signal(0, SIGCONT);
    CHECK(joined(ranks.finish()).empty());
}

TEST_CASE("a rank that dies before it publishes its address ends the wait for it") {
    if (absent()) return;
    const test::TemporaryDirectory folder;
    const auto store = std::make_shared<FileStore>(folder / "store", test::no_limit);
    store->set("loopback/0", host_identity(HostScope::network));  // its last message
    const std::string error = error_of([&] {
        gloo_backend().make({.rank = 1, .size = 2, .store = store, .timeout = test::no_limit, .lost = [] {
                                 return std::string("rank 0 has died");
                             }});
    });
    CHECK(contains(error, "could not connect to rank 0: rank 0 has died"));
}
