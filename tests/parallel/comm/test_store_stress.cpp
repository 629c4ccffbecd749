// A store's server with strangers that send nothing and clients that read nothing must still serve the job. The crowds
// are small here; LOCKSTEP_STRESS_STRANGERS, _SILENT, _RANKS and _SECONDS make them larger, for runs by hand.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
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
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/environment.h"
#include "lockstep/tests/fixtures/ranks.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/parallel/comm/raw_client.h"

using namespace lockstep;
using namespace lockstep::test;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;
using Command = store_protocol::Command;
using Lines = std::vector<std::string>;

namespace {

const std::string secret = "known to all ranks";
constexpr std::ptrdiff_t mib = 1 << 20;
/// Memory that a server may hold for clients that do not read, and some room for the allocator.
constexpr std::ptrdiff_t max_growth = 64 + 32;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool memory_counts = false;  // sanitizers retain freed memory
#else
constexpr bool memory_counts = true;
#endif

/// Number of file descriptors of a process.
std::ptrdiff_t open_descriptors(pid_t process) {
    return std::distance(std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd"),
                         std::filesystem::directory_iterator());
}

std::ptrdiff_t resident_mib(pid_t process) {
    std::ptrdiff_t all = 0, resident = 0;
    std::ifstream("/proc/" + std::to_string(process) + "/statm") >> all >> resident;
    return resident * ::sysconf(_SC_PAGESIZE) >> 20;
}

/// Connects as often as possible, up to `count` at a time, sends only `word`, and reconnects when it is disconnected.
class Crowd {
public:
    Crowd(int port, int count, std::string word = {})
        : port_(port), count_(count), word_(std::move(word)), thread_([this] { connect_all(); }) {}
    ~Crowd() {
        stopping_ = true;
        thread_.join();
    }
    int connections() const { return connections_; }

private:
    void connect_all() {
        std::vector<Descriptor> sockets(static_cast<std::size_t>(count_));
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        address.sin_port = htons(static_cast<std::uint16_t>(port_));
        while (!stopping_) {
            for (Descriptor& socket : sockets) {
                if (stopping_) return;
                char bytes[256];
                const ssize_t here = socket ? recv(socket.get(), bytes, sizeof bytes, MSG_DONTWAIT) : 0;
                if (here > 0 || (here < 0 && errno == EAGAIN)) continue;
                socket = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
                connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
                send(socket.get(), word_.data(), word_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
                ++connections_;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

    const int port_, count_;
    const std::string word_;
    std::atomic<bool> stopping_{false};
    std::atomic<int> connections_{0};
    std::thread thread_;
};

/// Clients that know the token, send `question` as often as possible, and read nothing after the handshake.
class SilentClients {
public:
    SilentClients(int port, const std::string& token, int count, std::string question)
        : question_(std::move(question)) {
        while (clients_.size() < static_cast<std::size_t>(count)) clients_.push_back(admitted(port, token));
        thread_ = std::thread([this] { ask(); });
    }
    ~SilentClients() {
        stopping_ = true;
        thread_.join();
    }
    std::ptrdiff_t connected() const {
        return std::count_if(clients_.begin(), clients_.end(), [](const RawClient& one) { return !one.broken(); });
    }

private:
    /// While strangers crowd the server, a client may be refused and tries again.
    static RawClient admitted(int port, const std::string& token) {
        const auto late = std::chrono::steady_clock::now() + hang;
        for (;;) {
            try {
                RawClient client(port);
                if (client.authenticate(token)) return client;
            } catch (const CommunicationError&) {
                if (std::chrono::steady_clock::now() > late) throw;
            }
            if (std::chrono::steady_clock::now() > late) throw Error("the server admitted no client");
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
    }
    void ask() {
        while (!stopping_) {
            for (const RawClient& client : clients_) client.push(question_);
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

    std::string question_;
    std::vector<RawClient> clients_;
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

TcpStoreOptions at(int port) { return {.port = port, .time_limit = no_limit, .token = secret}; }

std::string big_value() { return std::string(4 * mib, 'v'); }

/// A process with a server, until it is told to end. `meanwhile` does additional work with the server's own store, and
/// returns the errors.
class ServerProcess {
public:
    explicit ServerProcess(const std::function<std::string(Store& own)>& meanwhile = {}, rlim_t descriptors = 0)
        : held_(hold_free_port()), port_(port_of(held_)), process_(1, [=, this](int) -> Lines {
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
    /// Returns the errors of the process.
    std::string end() {
        TcpStore(at(port_)).set("end", "now");
        return joined(process_.finish());
    }

private:
    Descriptor held_;
    int port_;
    ForkedRanks process_;
};

struct Net {
    Linear first{64, 64}, second{64, 8};
    LOCKSTEP_MEMBERS(first, second)
    Tensor forward(const Tensor& x) const { return second(relu(first(x))); }
};

/// Opens files like a program that saves, until the stress ends.
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

TEST_CASE("many strangers use few descriptors, silent or not, and clients with the token are admitted") {
    const bool greets = GENERATE(false, true);
    const int strangers = number_from("LOCKSTEP_STRESS_STRANGERS", 400);
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
    CHECK(test::comes_true([&] { return crowd.connections() > strangers; }));  // some were rejected
    CHECK(most <= alone + 256 / 16 + 8);
    CHECK(host.end().empty());
}

TEST_CASE("a server out of descriptors continues to serve and admits new clients once it has some again") {
    if (!fd_limit_works) {
        WARN(fd_limit_skipped);
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
            std::this_thread::sleep_for(seconds(2));  // meanwhile the newcomer waits
            rusage used{};
            getrusage(RUSAGE_SELF, &used);
            // The server waits for free descriptors without polling all the time.
            const auto microseconds = [](const timeval& part) { return 1000000 * part.tv_sec + part.tv_usec; };
            const auto time = microseconds(used.ru_utime) + microseconds(used.ru_stime);
            return time > 500000 ? fmt::format("the server is busy-waiting: {} us", time) : std::string();
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

TEST_CASE("a server at its client limit reports it") {
    ServerProcess host({}, 100);  // half of them for clients
    std::vector<std::unique_ptr<TcpStore>> clients;
    const std::string text = message_of<CommunicationError>([&] {
        for (int i = 0; i < 60; ++i) clients.push_back(std::make_unique<TcpStore>(at(host.port())));
    });
    CHECK(contains(text, ", which is its limit"));
    CHECK(contains(text, "ulimit -n"));
    CHECK(clients.size() < 50);
    CHECK(clients.back()->get("ready") == "yes");
    clients.clear();
    CHECK(host.end().empty());
}

TEST_CASE("a client that is rejected before the handshake retries until its deadline") {
    const Descriptor held = hold_free_port();
    const int port = port_of(held);
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
                const linger at_once{1, 0};  // closes with a reset
                if (++sent_away % 2 == 0) setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
            }
        }
        server = std::make_unique<TcpStoreServer>(at(port));
    });
    CHECK_NOTHROW(TcpStore(at(port)).set("key", "value"));
    later.join();
}

TEST_CASE("clients that never read use no memory and delay no other client") {
    const int silent = number_from("LOCKSTEP_STRESS_SILENT", 12);
    ServerProcess host;
    TcpStore honest(at(host.port()));
    honest.set("big", big_value());
    const std::ptrdiff_t before = resident_mib(host.pid());
    const std::string question = GENERATE(as<std::string>(), "try_get", "get", "compare_set");
    CAPTURE(question);
    std::string frame = RawClient::frame(Command::try_get, {"big"});
    if (question == "get") frame = RawClient::frame(Command::get, {"big", store_protocol::number(1000)});
    if (question == "compare_set") frame = RawClient::frame(Command::compare_set, {"big", "no", "x"});
    const SilentClients crowd(host.port(), secret, silent, frame);
    std::ptrdiff_t most = 0;
    for (int i = 0; i < 100; ++i) {
        CHECK(honest.add("n", 1) == i + 1);
        if (i % 25 == 0) CHECK(honest.get("big").size() == big_value().size());
        most = std::max(most, resident_mib(host.pid()));
        std::this_thread::sleep_for(milliseconds(10));
    }
    CHECK(crowd.connected() == silent);  // they are harmless: a stopped rank is one of them
    if (memory_counts) CHECK(most - before <= 32);
    CHECK(host.end().empty());
}

TEST_CASE("values that only a client that never reads still needs are soon dropped") {
    const int silent = number_from("LOCKSTEP_STRESS_SILENT", 30);
    ServerProcess host;
    TcpStore honest(at(host.port()));
    honest.set("big", big_value());
    const std::ptrdiff_t before = resident_mib(host.pid());
    std::vector<std::unique_ptr<RawClient>> crowd;
    std::ptrdiff_t most = 0;
    for (int i = 0; i < silent; ++i) {
        honest.set("big", big_value());
        crowd.push_back(std::make_unique<RawClient>(host.port()));
        REQUIRE(crowd.back()->authenticate(secret));
        crowd.back()->send(RawClient::frame(Command::try_get, {"big"}));
        char byte = 0;
        REQUIRE(receive_all(crowd.back()->socket(), &byte, 1, RawClient::soon()).empty());  // the answer is in flight
        most = std::max(most, resident_mib(host.pid()));
    }
    honest.set("big", "small");
    CHECK(honest.get("big") == "small");
    std::ptrdiff_t sent_away = 0;
    for (const auto& one : crowd) sent_away += one->broken() ? 1 : 0;
    CHECK(sent_away >= silent - 64 / 4 - 1);
    CHECK(sent_away < silent);
    CHECK_FALSE(crowd.back()->broken());  // the client that has not read for longest is closed first
    if (memory_counts) CHECK(most - before <= max_growth);
    CHECK(host.end().empty());
}

TEST_CASE("memory for incomplete requests is bounded") {
    const int silent = number_from("LOCKSTEP_STRESS_SILENT", 12);
    ServerProcess host;
    TcpStore honest(at(host.port()));
    CHECK(honest.get("ready") == "yes");
    const std::ptrdiff_t before = resident_mib(host.pid());
    const std::string whole =
        RawClient::frame(Command::compare_set, {"key", big_value() + big_value(), big_value() + big_value()});
    const std::string part = whole.substr(0, whole.size() - 1);
    std::vector<std::unique_ptr<RawClient>> crowd;
    std::ptrdiff_t most = 0;
    for (int i = 0; i < silent; ++i) {
        crowd.push_back(std::make_unique<RawClient>(host.port()));
        REQUIRE(crowd.back()->authenticate(secret));
        crowd.back()->send(part);
        CHECK(honest.add("n", 1) == i + 1);
        most = std::max(most, resident_mib(host.pid()));
    }
    honest.set("big", big_value());
    CHECK(honest.get("big") == big_value());
    if (memory_counts) CHECK(most - before <= max_growth + 32);  // a growing buffer is briefly held twice
    CHECK(host.end().empty());
}

TEST_CASE("a full store reports it and continues") {
    ServerProcess host;
    TcpStore store(at(host.port()));
    const std::string value(Store::max_value_bytes, 'x');
    const std::string text = message_of<CommunicationError>([&] {
        for (int i = 0; i < 40; ++i) store.set("key " + std::to_string(i), value);
    });
    CHECK(contains(text, "the store is full"));
    CHECK(contains(message_of<CommunicationError>([&] { store.compare_set("more", "", value); }), "full"));
    CHECK(store.count() == 1 + 31);  // includes "ready"
    store.set("key 3", value);       // replaces another value
    CHECK(store.remove("key 4"));
    store.set("more", value);
    CHECK(store.get("more") == value);
    for (int i = 0; i < 31; ++i) store.remove("key " + std::to_string(i));
    CHECK(host.end().empty());
}

TEST_CASE("a job trains, saves and admits ranks among silent strangers and clients that never read") {
    const int ranks = number_from("LOCKSTEP_STRESS_RANKS", 3);
    const int strangers = number_from("LOCKSTEP_STRESS_STRANGERS", 300),
              silent = number_from("LOCKSTEP_STRESS_SILENT", 8);
    const auto duration = seconds(number_from("LOCKSTEP_STRESS_SECONDS", 3));
    const Descriptor held = hold_free_port();
    const int port = port_of(held);
    const test::TemporaryDirectory folder;
    ForkedRanks job(ranks, [&](int rank) -> Lines {
        if (rank == ranks - 1) std::this_thread::sleep_for(milliseconds(700));  // joins in the middle of the stress
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
    const SilentClients others(port, secret, silent, RawClient::frame(Command::try_get, {"big"}));
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
    std::printf("rank 0 of %d, %d strangers (%d connections), %d silent: MiB resident%s\n", ranks, strangers,
                crowd.connections(), silent, course.c_str());
    CHECK(first > 0);
    if (memory_counts) CHECK(most - first <= 16);
    CHECK(joined(job.finish()).empty());
    CHECK(std::filesystem::exists(folder / "weights.safetensors"));
}
