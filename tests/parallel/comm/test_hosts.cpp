// The backend for several hosts: the host of each rank is configured, so that processes of this machine can represent
// any host.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/mount.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/group/host_identity.h"
#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/runtime/error.h"
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
using Hosts = std::vector<int>;

namespace {

bool absent() {
    if (gloo_backend().make != nullptr) return false;
    std::printf("skipped: gloo: %s\n", gloo_backend().absence.c_str());
    return true;
}

std::unique_ptr<Transport> connect(const test::TemporaryDirectory& folder, int rank, const Hosts& hosts,
                                   milliseconds timeout) {
    return hosts_backend().make({.rank = rank,
                                 .size = static_cast<int>(hosts.size()),
                                 .store = std::make_shared<FileStore>(folder / "store", timeout),
                                 .timeout = timeout,
                                 .hosts = hosts});
}

using Body = std::function<Lines(std::unique_ptr<Transport>& transport, int rank)>;

std::string failures_of(const Hosts& hosts, const Body& body) {
    const test::TemporaryDirectory folder;
    ForkedRanks ranks(static_cast<int>(hosts.size()), [&](int rank) {
        auto transport = connect(folder, rank, hosts, no_limit);
        return body(transport, rank);
    });
    return joined(ranks.finish());
}

/// Two hosts of two ranks, and the calls that wait for the others.
const Hosts two_by_two{0, 0, 1, 1};
constexpr int ways_to_wait = 6;
void wait_in(int how, Transport& transport, Deadline deadline) {
    std::vector<float> data(1 << 18, 1.0F), parts(4 << 18);
    const std::vector<std::size_t> bytes(4, data.size() * sizeof(float));
    switch (how) {
        case 0: return transport.barrier(deadline);
        case 1: return transport.all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum, deadline);
        case 2: return transport.broadcast(data.data(), bytes[0], 3, deadline);
        case 3: return transport.all_gather(data.data(), parts.data(), bytes, deadline);
        case 4: return transport.all_to_all(std::vector<float>(parts).data(), bytes, parts.data(), bytes, deadline);
        default:
            const auto message = transport.receive(data.data(), 16, 3, 1);
            while (!message->advance() && RunClock::now() < deadline) std::this_thread::yield();
            throw TransportError("the deadline has passed");
    }
}

}  // namespace

TEST_CASE("hosts: every operation, in even and uneven layouts") {
    if (absent()) return;
    const Hosts hosts = GENERATE(Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 1}, Hosts{0, 1, 1, 2}, Hosts{0, 1, 0, 1},
                                 Hosts{0, 1, 2}, Hosts{0, 0, 0, 0, 1, 1, 1, 1}, Hosts{0, 0});
    if (static_cast<int>(hosts.size()) > max_ranks) return;
    INFO(fmt::format("{}", fmt::join(hosts, " ")));
    CHECK(failures_of(hosts, [&](auto& transport, int rank) {
              return exercise_transport(*transport, rank, static_cast<int>(hosts.size()));
          }) == "");
}

TEST_CASE("hosts: all ranks get the same bits") {
    if (absent()) return;
    CHECK(failures_of({0, 0, 0, 1, 1}, [](auto& transport, int rank) { return other_bits(*transport, rank); }) == "");
}

TEST_CASE("hosts: if a rank dies, all ranks of all hosts fail with an error that names it") {
    if (absent()) return;
    const int how = GENERATE(range(0, ways_to_wait));
    const std::string end = GENERATE("kill", "abort", "destroy");
    INFO(end << ", waiting in way " << how);
    CHECK(failures_of(two_by_two, [&](auto& transport, int rank) -> Lines {
              transport->barrier(far_off());
              if (rank == 3) {
                  std::this_thread::sleep_for(milliseconds(50));
                  if (end == "kill") ::kill(::getpid(), SIGKILL);
                  if (end == "abort") transport->abort("had enough");
                  if (end == "destroy") transport.reset();
                  std::this_thread::sleep_for(milliseconds(1000));
                  return {};
              }
              const std::string error = error_of([&] { wait_in(how, *transport, far_off()); });
              const std::string later = error_of([&] { transport->barrier(far_off()); });
              if (!contains(error, end == "abort" ? "had enough" : "rank 3")) return {error};
              return unless(later, error);
          }) == (end == "kill" ? "rank 3: ended by signal 9\n" : ""));
}

TEST_CASE("hosts: the rank that serves the store may die as well") {
    if (absent()) return;
    const int victim = GENERATE(0, 3);
    INFO("rank " << victim);
    const Descriptor port = hold_free_port();
    ForkedRanks ranks(4, [&](int rank) -> Lines {
        setenv("LOCKSTEP_HOST_ID", rank < 2 ? "a" : "b", 1);
        ProcessGroup group({.backend = "shm",
                            .rendezvous = {.init_method = fmt::format("tcp://127.0.0.1:{}", port_of(port)),
                                           .rank = rank,
                                           .world_size = 4,
                                           .time_limit = no_limit},
                            .time_limit = no_limit});
        group.barrier();
        if (rank == victim) ::kill(::getpid(), SIGKILL);
        std::string error = "nothing was thrown";
        try {
            for (;;) group.all_reduce(Tensor::zeros({100000}));
        } catch (const CommunicationError& caught) {
            error = caught.what();
        }
        const std::size_t what = error.find("shm): ");  // after the reporting rank
        if (what == std::string::npos) return {error};
        return unless(error.substr(what), fmt::format(" {}", victim));
    });
    CHECK(joined(ranks.finish()) == fmt::format("rank {}: ended by signal 9\n", victim));
}

TEST_CASE("hosts: a stopped rank is detected at the deadline on all hosts") {
    if (absent()) return;
    const int how = GENERATE(range(0, ways_to_wait));
    const test::TemporaryDirectory folder;
    ForkedRanks ranks(4, [&](int rank) -> Lines {
        auto transport = connect(folder, rank, two_by_two, no_limit);
        transport->barrier(far_off());
        if (rank == 3) ::kill(::getpid(), SIGSTOP);
        const std::string error = error_of([&] { wait_in(how, *transport, in(1000)); });
        transport.reset();
        return contains(error, "deadline") || contains(error, "closed") ? Lines{} : Lines{error};
    });
    ranks.let_others_end({3});
    ranks.signal(3, SIGKILL);
    CHECK(joined(ranks.finish()) == "rank 3: ended by signal 9\n");
}

TEST_CASE("hosts: messages that outlive the transport, and messages without a sender") {
    if (absent()) return;
    CHECK(failures_of({0, 0, 1}, [](auto& transport, int rank) -> Lines {
              int value = 0;
              transport->barrier(far_off());
              if (rank != 0) {
                  finish(*transport->send(&value, sizeof value, 0, 1));
                  transport->barrier(far_off());
                  auto after = transport->receive(&value, sizeof value, 0, 2);
                  transport.reset();
                  return unless(error_of([&] { finish(*after); }), "the group has been destroyed");
              }
              transport->barrier(far_off());
              for (int i = 0; i < 2; ++i) finish(*transport->receive(&value, sizeof value, Transport::any_source, 1));
              return unless(error_of([&] { finish(*transport->receive(&value, sizeof value, -1, 1)); }),
                            "left the group");
          }) == "");
}

TEST_CASE("hosts: a missing rank is an error at the deadline") {
    if (absent()) return;
    const test::TemporaryDirectory folder;
    const Hosts hosts{0, 0, 1};
    ForkedRanks ranks(2, [&](int rank) -> Lines {
        const std::string error = error_of([&] { auto never = connect(folder, rank, hosts, milliseconds(500)); });
        return contains(error, "could not connect") ? Lines{} : Lines{error};
    });
    CHECK(joined(ranks.finish()) == "");
}

TEST_CASE("hosts: LOCKSTEP_HOST_ID distinguishes processes of one machine") {
    const test::TemporaryDirectory folder;
    ForkedRanks ranks(4, [&](int rank) -> Lines {
        setenv("LOCKSTEP_HOST_ID", rank % 2 == 0 ? "a" : "b", 1);
        if (rank == 3) unsetenv("LOCKSTEP_HOST_ID");
        const auto store = std::make_shared<FileStore>(folder / "store", no_limit);
        const Hosts hosts = find_hosts({.rank = rank, .size = 4, .store = store}, far_off());
        return hosts == Hosts{0, 1, 0, 2} ? Lines{} : Lines{fmt::format("{}", fmt::join(hosts, " "))};
    });
    CHECK(joined(ranks.finish()) == "");
}

TEST_CASE("hosts: placement of ranks") {
    const HostLayout layout({0, 1, 1, 0, 2}, 5);
    CHECK(layout.hosts() == 3);
    CHECK_FALSE(layout.in_order());
    CHECK(layout.ranks_on(0) == std::vector<int>{0, 3});
    CHECK(layout.position_of(3) == 1);
    CHECK(HostLayout({0, 0, 1}, 3).in_order());
    CHECK(HostLayout({}, 3).ranks_on(0) == std::vector<int>{0, 1, 2});
}

TEST_CASE("hosts: ranks in a PID namespace that see the /proc of another one still share memory") {
    const bool one_space = GENERATE(true, false);
    ForkedRanks outside(1, [&](int) -> Lines {
        if (::unshare(CLONE_NEWPID) != 0) return {"not tried: this user may not create PID namespaces"};
        const pid_t first = ::fork();  // when the first process of a namespace ends, the others end with it
        if (first == 0)
            for (;;) ::pause();
        const test::TemporaryDirectory folder;
        const auto rank_main = [&](int rank) -> Lines {
            if (!one_space && rank == 1 && ::unshare(CLONE_NEWPID) != 0) return {"cannot unshare"};
            const auto body = [&]() -> Lines {
                ProcessGroup group({.backend = "shm",
                                    .rendezvous = {.init_method = "file://" + (folder / "store").string(),
                                                   .rank = rank,
                                                   .world_size = 2,
                                                   .time_limit = no_limit},
                                    .time_limit = no_limit});
                const Tensor x = Tensor::full({3}, 1 + rank);
                group.all_reduce(x);
                return x.to_vector<float>() == std::vector<float>(3, 3.0F) ? Lines{} : Lines{"a wrong sum"};
            };
            if (one_space || rank == 0) return body();
            ForkedRanks inside(1, [&](int) { return body(); });  // in a separate namespace
            return inside.finish().front();
        };
        ForkedRanks ranks(2, rank_main);
        const std::string text = joined(ranks.finish());
        ::kill(first, SIGKILL);
        ::waitpid(first, nullptr, 0);
        return text.empty() ? Lines{} : Lines{text};
    });
    const std::string text = joined(outside.finish());
    if (contains(text, "not tried")) {
        WARN(text);
        return;
    }
    if (!one_space && absent()) return;
    CHECK(text == "");
}

TEST_CASE("hosts: without /proc, a rank is a host by itself unless LOCKSTEP_HOST_ID is set") {
    const std::string id = GENERATE("", "a");
    ForkedRanks outside(1, [&](int) -> Lines {
        if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount("none", "/proc", "tmpfs", 0, nullptr) != 0)
            return {"not tried: this user may not hide /proc"};
        const test::TemporaryDirectory folder;
        ForkedRanks ranks(2, [&](int rank) -> Lines {
            if (!id.empty()) setenv("LOCKSTEP_HOST_ID", id.c_str(), 1);
            const GroupInfo info{.rank = rank,
                                 .size = 2,
                                 .store = std::make_shared<FileStore>(folder / "store", no_limit),
                                 .timeout = no_limit};
            const Hosts hosts = find_hosts(info, far_off());
            if (hosts != (id.empty() ? Hosts{0, 1} : Hosts{0, 0})) return {fmt::format("{}", fmt::join(hosts, " "))};
            for (const HostScope scope : {HostScope::kernel, HostScope::processes, HostScope::network})
                if (const std::string host = host_identity(scope, rank); host != fmt::format("rank {}", rank))
                    return {"host " + host};
            const std::string text = error_of([&] { auto never = shm_backend().make(info); });
            if (!contains(text, "/proc does not identify this host")) return {text};
            if (gloo_backend().make == nullptr) return {};
            GroupInfo other = info;
            other.store = std::make_shared<PrefixStore>("gloo/", info.store);
            return unless(error_of([&] { auto never = gloo_backend().make(other); }), "/proc does not identify");
        });
        const std::string text = joined(ranks.finish());
        return text.empty() ? Lines{} : Lines{text};
    });
    const std::string text = joined(outside.finish());
    if (contains(text, "not tried")) {
        WARN(text);
        return;
    }
    CHECK(text == "");
}
