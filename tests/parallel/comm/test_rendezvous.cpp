// Rendezvous of processes: threads represent them here, each with the variables that its launcher would set.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <latch>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/rendezvous.h"
#include "lockstep/parallel/comm/store/rank_exits.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/parallel/comm/launcher_environment.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::Environment;
using lockstep::test::message_of;
using std::chrono::milliseconds;

namespace {

/// The message that each of `count` threads throws, or an empty string.
std::vector<std::string> errors_of(int count, const std::function<void(int)>& process) {
    std::vector<std::string> errors(static_cast<std::size_t>(count));
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i)
        threads.emplace_back([&, i] {
            try {
                process(i);
            } catch (const Error& error) {
                errors[static_cast<std::size_t>(i)] = error.what();
            }
        });
    for (std::thread& thread : threads) thread.join();
    return errors;
}

RendezvousOptions member(const std::string& method, int rank, int world_size, milliseconds limit = test::no_limit) {
    return {.init_method = method, .rank = rank, .world_size = world_size, .time_limit = limit};
}

}  // namespace

TEST_CASE("all ranks find each other by address and by file") {
    const Environment nothing({});
    const bool by_file = GENERATE(false, true);
    const test::TemporaryDirectory directory;
    const std::filesystem::path file = directory / "store";
    const int world_size = GENERATE(1, 2, 5);
    const Descriptor held = hold_free_port();
    const std::string method = by_file ? "file://" + file.string() : "tcp://127.0.0.1:" + std::to_string(port_of(held));
    const auto errors = errors_of(world_size, [&](int rank) {
        const Rendezvous job(member(method, rank, world_size));
        job.store()->set("value/" + std::to_string(job.rank()), std::to_string(10 * rank));
        for (int other = 0; other < job.world_size(); ++other)
            if (job.store()->get("value/" + std::to_string(other)) != std::to_string(10 * other))
                throw Error("another value");
    });
    for (const std::string& error : errors) CHECK(error.empty());
    CHECK_FALSE(std::filesystem::exists(file));
}

TEST_CASE("a job with one process needs no other process") {
    const Environment nothing({});
    const Rendezvous job;
    CHECK(job.world_size() == 1);
    CHECK(job.store()->add("n", 2) == 2);
}

TEST_CASE("under torchrun, the store is next to the agent's port") {
    std::unique_ptr<TcpStoreServer> agent, stranger;
    for (int i = 0; i < 50 && !stranger; ++i) {  // another job's store; its port may be in use
        agent = std::make_unique<TcpStoreServer>(TcpStoreOptions{});
        try {
            stranger = std::make_unique<TcpStoreServer>(TcpStoreOptions{.port = agent->port() + 1, .token = "theirs"});
        } catch (const CommunicationError&) {
            continue;
        }
    }
    REQUIRE(stranger);
    const Environment torchrun({{"MASTER_ADDR", "127.0.0.1"},
                                {"MASTER_PORT", std::to_string(agent->port())},
                                {"TORCHELASTIC_RUN_ID", "none"},
                                {"TORCHELASTIC_RESTART_COUNT", "0"}});
    const auto errors = errors_of(3, [&](int rank) {
        if (rank == 0) std::this_thread::sleep_for(milliseconds(300));  // the others look for it during this time
        const Rendezvous job({.rank = rank, .world_size = 3, .time_limit = test::no_limit});
        CHECK(job.store()->add("came", 1) <= 3);
    });
    for (const std::string& error : errors) CHECK(error.empty());
}

TEST_CASE("the address of rank 0 is read from the environment, even if the rank is not") {
    const Descriptor held = hold_free_port();
    const Environment address({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(port_of(held))}});
    for (const std::string& error :
         errors_of(2, [&](int rank) { Rendezvous({.rank = rank, .world_size = 2, .time_limit = test::no_limit}); }))
        CHECK(error.empty());
}

TEST_CASE("ranks that die, fail or leave are reported to ranks that check") {
    const Environment nothing({});
    const Descriptor held = hold_free_port();
    const std::string method = "tcp://127.0.0.1:" + std::to_string(port_of(held));
    const std::string how = GENERATE("died", "failed", "left");
    const auto other = [&] {
        auto job = std::make_unique<Rendezvous>(member(method, 1, 2));
        if (how == "died") _exit(0);
        if (how == "failed") job->failure()->note();
        job.reset();
        _exit(0);
    };
    const pid_t child = fork();
    if (child == 0) other();
    {
        const Rendezvous job(member(method, 0, 2));
        CHECK(job.store()->get("departed", test::no_limit) == "1 " + how + "\n");
        waitpid(child, nullptr, 0);
        if (how == "died") job.failure()->note();  // then no rank waits for it
    }
}

TEST_CASE("missing ranks are named on every rank that is present") {
    const Environment nothing({});
    const Descriptor held = hold_free_port();
    const std::string method = "tcp://127.0.0.1:" + std::to_string(port_of(held));
    const auto begin = std::chrono::steady_clock::now();
    std::latch both(2);
    const auto errors = errors_of(2, [&](int i) {
        both.arrive_and_wait();
        Rendezvous(member(method, 2 * i, 4, i == 0 ? milliseconds(2000) : test::no_limit));
    });
    for (const std::string& error : errors) CHECK(contains(error, ": ranks 1, 3 have not arrived within "));
    CHECK(std::chrono::steady_clock::now() - begin < test::hang);
}

TEST_CASE("ranks whose deadlines expire together all name the missing ranks and leave no file") {
    const Environment nothing({});
    const test::TemporaryDirectory directory;
    const bool by_file = GENERATE(false, true);
    for (int round = 0; round < 5; ++round) {
        const Descriptor held = hold_free_port();
        const std::string method =
            by_file ? "file://" + (directory / "store").string() : "tcp://127.0.0.1:" + std::to_string(port_of(held));
        std::latch all(3);
        const auto late = [&](int i) {
            all.arrive_and_wait();
            Rendezvous(member(method, i, 4, milliseconds(1000)));
        };
        for (const std::string& error : errors_of(3, late)) {
            CAPTURE(error);
            CHECK(contains(error, "rank 3 has not arrived"));
        }
        CHECK(directory.file_count() == 0);
    }
}

TEST_CASE("a duplicate rank or another number of ranks is rejected") {
    const Environment nothing({});
    const test::TemporaryDirectory directory;
    const std::string file = directory / "store";
    std::atomic<int> refused{0};
    const auto twice = errors_of(3, [&](int i) {
        while (i == 2 && refused == 0) std::this_thread::yield();  // rank 0 arrives after one rank 1 has been rejected
        try {
            Rendezvous(member("file://" + file, i == 2 ? 0 : 1, 2));
        } catch (const CommunicationError&) {
            ++refused;
            throw;
        }
    });
    CHECK(twice[2].empty());
    CHECK(twice[0].empty() != twice[1].empty());
    CHECK(contains(twice[0] + twice[1], "rank 1 of 2 is used by two processes"));
    std::filesystem::remove(file);

    const Descriptor held = hold_free_port();
    const std::string method = "tcp://127.0.0.1:" + std::to_string(port_of(held));
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string& error : errors_of(2, [&](int i) { Rendezvous(member(method, i, 2 + i)); }))
        CHECK((contains(error, "was started for") ||
               contains(error, "has closed the connection")));  // the store may end first
    CHECK(std::chrono::steady_clock::now() - begin < test::hang);

    FileStore others(file);
    others.set("lockstep/world_size", "7");
    const std::string size = message_of<CommunicationError>([&] { Rendezvous(member("file://" + file, 0, 2)); });
    CHECK(contains(size, "started for 2 processes, others for 7"));
    CHECK(contains(size, "another job uses this file"));
}

TEST_CASE("a job with very many missing ranks ends at its deadline and names some of them") {
    const Environment nothing({});
    const test::TemporaryDirectory directory;
    const bool by_file = GENERATE(false, true);
    const Descriptor held = hold_free_port();
    const std::string method =
        by_file ? "file://" + (directory / "store").string() : "tcp://127.0.0.1:" + std::to_string(port_of(held));
    const auto begin = std::chrono::steady_clock::now();
    const std::string error =
        message_of<CommunicationError>([&] { Rendezvous(member(method, 0, 1 << 20, milliseconds(500))); });
    CHECK(std::chrono::steady_clock::now() - begin < test::hang);
    CHECK(contains(error,
                   ": ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 1048559 more "
                   "have not arrived within 500 ms (world size 1048576)"));
    // A rank with another world size gets an error, and does not list the missing ranks.
    const auto errors = errors_of(2, [&](int i) { Rendezvous(member(method, i, i == 0 ? 1 << 20 : 3)); });
    for (const std::string& text : errors)
        CHECK((contains(text, "was started for") || contains(text, "has closed the connection")));
    CHECK(std::chrono::steady_clock::now() - begin < test::hang);
}

TEST_CASE("a file of a killed job does not disturb the next job") {
    const Environment nothing({});
    const test::TemporaryDirectory directory;
    const std::string method = "file://" + (directory / "store").string();
    for (int round = 0; round < 2; ++round) {
        test::ForkedRanks killed(2, [&](int rank) -> std::vector<std::string> {
            const Rendezvous job(member(method, rank, 2));
            job.store()->set("round " + std::to_string(round), std::to_string(rank));
            for (;;) ::pause();
        });
        FileStore watched(directory / "store");
        watched.get("lockstep/round " + std::to_string(round), test::no_limit);
        if (round == 1) CHECK_FALSE(watched.try_get("lockstep/round 0"));
        for (const int rank : {0, 1}) killed.signal(rank, SIGKILL);
        killed.finish();
    }
    CHECK(directory.file_count() == 1);
    for (const std::string& error : errors_of(3, [&](int rank) { Rendezvous(member(method, rank, 3)); }))
        CHECK(error.empty());
    CHECK(directory.file_count() == 0);
}

TEST_CASE("ports derived from a job's name are skipped if they are in use") {
    const std::string launcher = GENERATE("mpirun", "srun");
    const std::string own = std::to_string(getpid());
    const auto environment_of = [&](int rank) {
        const std::string number = std::to_string(rank);
        return launcher == "mpirun" ? std::map<std::string, std::string>{{"OMPI_COMM_WORLD_RANK", number},
                                                                         {"OMPI_COMM_WORLD_SIZE", "3"},
                                                                         {"OMPI_COMM_WORLD_LOCAL_RANK", number},
                                                                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                                                                         {"PMIX_NAMESPACE", "test " + own}}
                                    : std::map<std::string, std::string>{
                                          {"SLURM_PROCID", number},        {"SLURM_LOCALID", number},
                                          {"SLURM_STEP_NUM_TASKS", "3"},   {"SLURM_STEP_TASKS_PER_NODE", "3"},
                                          {"SLURM_STEP_NODELIST", "here"}, {"SLURM_JOB_ID", own},
                                          {"SLURM_STEP_ID", "0"}};
    };
    const std::string token = GENERATE("", "shared");
    int port = 0;
    {
        const Environment environment(environment_of(0));
        const RankInfo info = rank_info();
        CHECK(info.master_ports == 16);
        port = info.master_port;
        setenv("MASTER_PORT", "29500", 1);  // the user's setting overrides the computed ports
        CHECK(rank_info().master_ports == 1);
        CHECK(rank_info().job.empty());
    }
    test::ForkedRanks ranks(3, [&](int rank) -> std::vector<std::string> {
        std::this_thread::sleep_for(milliseconds(300));  // the ports are in use by then
        const Environment environment(environment_of(rank));
        const Rendezvous job({.time_limit = test::no_limit, .token = token});
        return job.store()->add("came", 1) <= 3 ? std::vector<std::string>() : std::vector<std::string>{"too many"};
    });
    // A server that sends nothing, a store with another token, and one of another job of this user.
    const Descriptor silent = listen_on("127.0.0.1", port);
    const TcpStoreServer theirs({.port = port + 1, .token = "theirs"}), other({.port = port + 2, .job = "another"});
    CHECK(test::joined(ranks.finish()) == "");
}

TEST_CASE("an address that other machines can reach needs a token") {
    const Environment nothing({});
    const Descriptor held = hold_free_port();
    const std::string method = "tcp://0.0.0.0:" + std::to_string(port_of(held));
    CHECK(contains(message_of<InvalidArgument>([&] { Rendezvous(member(method, 0, 2)); }), "token"));
    setenv("LOCKSTEP_STORE_TOKEN", "shared", 1);
    const auto errors = errors_of(2, [&](int rank) { Rendezvous(member(method, rank, 2)); });
    for (const std::string& error : errors) CHECK(error.empty());
}
