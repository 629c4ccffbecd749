// A store's server among strangers who say nothing and clients who read nothing: what the job has needs, it gets. The
// crowds are small here; LOCKSTEP_SIEGE_STRANGERS, _MUTES, _RANKS and _SECONDS make them larger, for runs by hand.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/comm/store.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/few_descriptors.h"
#include "lockstep/tests/parallel/comm/store_siege.h"
#include "lockstep/tests/parallel/ddp_ranks.h"

using namespace lockstep;
using namespace lockstep::testing;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
using Command = store_protocol::Command;
using Lines = std::vector<std::string>;

namespace {

const std::string secret = "known to all ranks";
constexpr std::ptrdiff_t mib = 1 << 20;
/// What a server may keep for those who do not read, and some room for the allocator.
constexpr std::ptrdiff_t most_growth = 64 + 32;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool memory_counts = false;  // sanitizers keep what was given back
#else
constexpr bool memory_counts = true;
#endif

TcpStoreOptions at(int port) { return {.port = port, .time_limit = no_limit, .token = secret}; }

std::string big_value() { return std::string(4 * mib, 'v'); }

/// A process with a server, until it is told to end. `meanwhile` is what else it does with its own store, and returns
/// what went wrong.
class ServerProcess {
public:
    explicit ServerProcess(const std::function<std::string(Store& own)>& meanwhile = {}, rlim_t descriptors = 0)
        : port_(port_of(hold_free_port())), process_(1, [=, this](int) -> Lines {
              if (descriptors > 0) {
                  const rlimit limit{descriptors, descriptors};
                  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return {"setrlimit failed"};
              }
              const TcpStoreServer server(at(port_));
              TcpStore own(at(port_));
              own.set("ready", "yes");
              const std::string wrong = meanwhile ? meanwhile(own) : std::string();
              own.get("end");
              return wrong.empty() ? Lines{} : Lines{wrong};
          }) {}

    int port() const { return port_; }
    pid_t pid() const { return process_.pid(0); }
    /// What went wrong there.
    std::string end() {
        TcpStore(at(port_)).set("end", "now");
        return joined(process_.finish());
    }

private:
    int port_;
    ForkedRanks process_;
};

struct Net {
    Linear first{64, 64}, second{64, 8};
    LOCKSTEP_MEMBERS(first, second)
    Tensor forward(const Tensor& x) const { return second(relu(first(x))); }
};

/// Opens files as a program does that saves, until the siege is over.
std::string open_files(Store& own, int count) {
    int failures = 0;
    while (!own.try_get("end")) {
        std::vector<Descriptor> files;
        for (int i = 0; i < count; ++i) {
            files.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
            if (!files.back()) ++failures;
        }
        std::this_thread::sleep_for(milliseconds(5));
    }
    return failures == 0 ? "" : fmt::format("{} files could not be opened", failures);
}

}  // namespace

TEST_CASE("a crowd of strangers, silent or not, takes few descriptors, and who says who it is gets in") {
    const bool greets = GENERATE(false, true);
    const int strangers = number_from("LOCKSTEP_SIEGE_STRANGERS", 400);
    ServerProcess host([](Store& own) { return open_files(own, 100); }, 256);
    TcpStore before(at(host.port()));
    CHECK(before.get("ready") == "yes");
    const std::ptrdiff_t alone = open_descriptors(host.pid()) + 100;
    const std::string hello =
        RawClient::frame(Command::hello, {store_protocol::magic, std::string(handshake::nonce_size, 'n')});
    const Crowd crowd(host.port(), strangers, greets ? hello : "");
    std::ptrdiff_t most = 0;
    for (int i = 0; i < 20; ++i) {
        TcpStore newcomer(at(host.port()));
        CHECK(newcomer.add("came", 1) == i + 1);
        CHECK(before.get("came") == std::to_string(i + 1));
        most = std::max(most, open_descriptors(host.pid()));
        std::this_thread::sleep_for(milliseconds(100));
    }
    CHECK(test::comes_true([&] { return crowd.connections() > strangers; }));  // some were sent away
    CHECK(most <= alone + 256 / 16 + 8);
    CHECK(host.end().empty());
}

TEST_CASE("a server without descriptors goes on serving, and takes up newcomers when there are some again") {
    if (!can_be_without_descriptors) {
        WARN(sanitizers_need_descriptors);
        return;
    }
    ServerProcess host(
        [](Store& own) {
            std::vector<Descriptor> all;
            for (;;) {
                Descriptor one(open("/dev/null", O_RDONLY | O_CLOEXEC));
                if (!one) break;
                all.push_back(std::move(one));
            }
            own.set("none left", "yes");
            std::this_thread::sleep_for(seconds(2));  // the newcomer waits, most of the time
            rusage used{};
            getrusage(RUSAGE_SELF, &used);
            // It waits for better times, and does not look for them all the time.
            const auto microseconds = [](const timeval& part) { return 1000000 * part.tv_sec + part.tv_usec; };
            const auto time = microseconds(used.ru_utime) + microseconds(used.ru_stime);
            return time > 500000 ? fmt::format("the server spins: {} us", time) : std::string();
        },
        100);
    TcpStore before(at(host.port()));
    CHECK(before.get("ready") == "yes");
    CHECK(before.get("none left") == "yes");
    std::thread newcomer([&] { TcpStore(at(host.port())).set("late", "but here"); });
    CHECK(before.add("n", 1) == 1);
    CHECK(before.get("late") == "but here");
    newcomer.join();
    CHECK(host.end().empty());
}

TEST_CASE("a server that may serve no more says so") {
    ServerProcess host({}, 100);  // half of them for clients
    std::vector<std::unique_ptr<TcpStore>> clients;
    const std::string text = message_of<CommunicationError>([&] {
        for (int i = 0; i < 60; ++i) clients.push_back(std::make_unique<TcpStore>(at(host.port())));
    });
    CHECK(contains(text, "which is its limit"));
    CHECK(contains(text, "ulimit -n"));
    CHECK(clients.size() < 50);
    CHECK(clients.back()->get("ready") == "yes");
    clients.clear();
    CHECK(host.end().empty());
}

TEST_CASE("who is sent away before it has proved anything tries again until its deadline") {
    const int port = port_of(hold_free_port());
    std::unique_ptr<TcpStoreServer> server;
    std::thread later([&] {
        {
            const Descriptor hasty = listen_on("127.0.0.1", port);
            for (int sent_away = 0; sent_away < 5;) {
                const Descriptor socket(accept(hasty.get(), nullptr, nullptr));
                if (!socket) {
                    std::this_thread::sleep_for(milliseconds(1));
                    continue;
                }
                const linger at_once{1, 0};  // a reset
                if (++sent_away % 2 == 0) setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
            }
        }
        server = std::make_unique<TcpStoreServer>(at(port));
    });
    CHECK_NOTHROW(TcpStore(at(port)).set("key", "value"));
    later.join();
}

TEST_CASE("clients who read nothing cost no memory and hold up nobody") {
    const int mutes = number_from("LOCKSTEP_SIEGE_MUTES", 12);
    ServerProcess host;
    TcpStore honest(at(host.port()));
    honest.set("big", big_value());
    const std::ptrdiff_t before = resident_mib(host.pid());
    const std::string question = GENERATE(as<std::string>(), "try_get", "get", "compare_set");
    CAPTURE(question);
    std::string frame = RawClient::frame(Command::try_get, {"big"});
    if (question == "get") frame = RawClient::frame(Command::get, {"big", store_protocol::number(1000)});
    if (question == "compare_set") frame = RawClient::frame(Command::compare_set, {"big", "no", "x"});
    const Mutes crowd(host.port(), secret, mutes, frame);
    std::ptrdiff_t most = 0;
    for (int i = 0; i < 100; ++i) {
        CHECK(honest.add("n", 1) == i + 1);
        if (i % 25 == 0) CHECK(honest.get("big").size() == big_value().size());
        most = std::max(most, resident_mib(host.pid()));
        std::this_thread::sleep_for(milliseconds(10));
    }
    CHECK(crowd.still_there() == mutes);  // they harm nobody: a rank that was stopped is one of them
    if (memory_counts) CHECK(most - before <= 32);
    CHECK(host.end().empty());
}

TEST_CASE("values that nobody has any more but who does not read are not kept for long") {
    const int mutes = number_from("LOCKSTEP_SIEGE_MUTES", 30);
    ServerProcess host;
    TcpStore honest(at(host.port()));
    honest.set("big", big_value());
    const std::ptrdiff_t before = resident_mib(host.pid());
    std::vector<std::unique_ptr<RawClient>> crowd;
    std::ptrdiff_t most = 0;
    for (int i = 0; i < mutes; ++i) {
        honest.set("big", big_value());
        crowd.push_back(std::make_unique<RawClient>(host.port()));
        REQUIRE(crowd.back()->shake_hands(secret));
        crowd.back()->send(RawClient::frame(Command::try_get, {"big"}));
        char byte = 0;
        REQUIRE(receive_all(crowd.back()->socket(), &byte, 1, RawClient::soon()).empty());  // it is on its way
        most = std::max(most, resident_mib(host.pid()));
    }
    honest.set("big", "small");
    CHECK(honest.get("big") == "small");
    std::ptrdiff_t sent_away = 0;
    for (const auto& one : crowd) sent_away += one->broken() ? 1 : 0;
    CHECK(sent_away >= mutes - 64 / 4 - 1);
    CHECK(sent_away < mutes);
    CHECK_FALSE(crowd.back()->broken());  // who has not read for longest goes first
    if (memory_counts) CHECK(most - before <= most_growth);
    CHECK(host.end().empty());
}

TEST_CASE("requests that are never finished are not kept without bound") {
    const int mutes = number_from("LOCKSTEP_SIEGE_MUTES", 12);
    ServerProcess host;
    TcpStore honest(at(host.port()));
    CHECK(honest.get("ready") == "yes");
    const std::ptrdiff_t before = resident_mib(host.pid());
    const std::string whole =
        RawClient::frame(Command::compare_set, {"key", big_value() + big_value(), big_value() + big_value()});
    const std::string part = whole.substr(0, whole.size() - 1);
    std::vector<std::unique_ptr<RawClient>> crowd;
    std::ptrdiff_t most = 0;
    for (int i = 0; i < mutes; ++i) {
        crowd.push_back(std::make_unique<RawClient>(host.port()));
        REQUIRE(crowd.back()->shake_hands(secret));
        crowd.back()->send(part);
        CHECK(honest.add("n", 1) == i + 1);
        most = std::max(most, resident_mib(host.pid()));
    }
    honest.set("big", big_value());
    CHECK(honest.get("big") == big_value());
    if (memory_counts) CHECK(most - before <= most_growth + 32);  // a buffer that grows is there twice for a moment
    CHECK(host.end().empty());
}

TEST_CASE("a store that is full says so and goes on") {
    ServerProcess host;
    TcpStore store(at(host.port()));
    const std::string value(Store::longest_value, 'x');
    const std::string text = message_of<CommunicationError>([&] {
        for (int i = 0; i < 40; ++i) store.set("key " + std::to_string(i), value);
    });
    CHECK(contains(text, "the store is full"));
    CHECK(contains(message_of<CommunicationError>([&] { store.compare_set("more", "", value); }), "full"));
    CHECK(store.count() == 1 + 31);  // "ready" is there, too
    store.set("key 3", value);       // in the place of another one
    CHECK(store.remove("key 4"));
    store.set("more", value);
    CHECK(store.get("more") == value);
    for (int i = 0; i < 31; ++i) store.remove("key " + std::to_string(i));
    CHECK(host.end().empty());
}

TEST_CASE("a job trains, saves and takes up ranks among silent strangers and clients who read nothing") {
    const int ranks = number_from("LOCKSTEP_SIEGE_RANKS", 3);
    const int strangers = number_from("LOCKSTEP_SIEGE_STRANGERS", 300), mutes = number_from("LOCKSTEP_SIEGE_MUTES", 8);
    const auto duration = seconds(number_from("LOCKSTEP_SIEGE_SECONDS", 3));
    const int port = port_of(hold_free_port());
    const test::TemporaryDirectory folder;
    ForkedRanks job(ranks, [&](int rank) -> Lines {
        if (rank == ranks - 1) std::this_thread::sleep_for(milliseconds(700));  // comes in the middle of it
        ProcessGroup group({.backend = "shm",
                            .rendezvous = {.init_method = fmt::format("tcp://127.0.0.1:{}", port),
                                           .rank = rank,
                                           .world_size = ranks,
                                           .time_limit = no_limit,
                                           .token = secret},
                            .time_limit = no_limit});
        manual_seed(1);
        DistributedDataParallel model(Net{}, group);
        SGD sgd(model, {.lr = 0.01});
        const Tensor x = Tensor::randn({8, 64}), y = Tensor::randn({8, 8});
        const auto end = Clock::now() + duration;
        Tensor over = Tensor::zeros({1});
        constexpr int warm_up = 20;
        for (int steps = 0; over.item() == 0; ++steps) {
            model.step(sgd, x, y, mse_loss);
            if (rank == 0) save(model, folder / "weights.safetensors");
            if (rank == 0 && steps == warm_up) test::put_bytes(folder / "warm", "yes");
            over.fill_(rank == 0 && Clock::now() >= end && steps > 2 * warm_up ? 1 : 0);
            group.broadcast(over, 0);
        }
        return {};
    });

    const Crowd crowd(port, strangers);
    TcpStore store(at(port));
    store.set("big", big_value());
    const Mutes others(port, secret, mutes, RawClient::frame(Command::try_get, {"big"}));
    std::string course;
    std::ptrdiff_t first = 0, most = 0;
    const auto until = Clock::now() + duration + hang;
    for (auto next = Clock::now(); Clock::now() < until; std::this_thread::sleep_for(milliseconds(50))) {
        siginfo_t ended{};
        if (waitid(P_PID, static_cast<id_t>(job.pid(0)), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 || ended.si_pid != 0)
            break;
        if (!std::filesystem::exists(folder / "warm")) continue;
        const std::ptrdiff_t now = resident_mib(job.pid(0));
        if (now == 0) break;
        if (first == 0) first = now;
        most = std::max(most, now);
        if (Clock::now() >= next) {
            course += fmt::format(" {}", now);
            next = Clock::now() + milliseconds(duration) / 10;
        }
    }
    std::printf("rank 0 of %d, %d strangers (%d connections), %d mutes: MiB resident%s\n", ranks, strangers,
                crowd.connections(), mutes, course.c_str());
    CHECK(first > 0);
    if (memory_counts) CHECK(most - first <= 16);
    CHECK(joined(job.finish()).empty());
    CHECK(std::filesystem::exists(folder / "weights.safetensors"));
}
