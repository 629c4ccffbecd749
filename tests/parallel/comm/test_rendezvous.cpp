// Processes that find each other: threads stand for them here, each with what its launcher would have told it.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/job_failure.h"
#include "lockstep/parallel/rendezvous.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/runtime/gate.h"

using namespace lockstep;
using lockstep::testing::contains;
using lockstep::testing::message_of;
using std::chrono::milliseconds;

namespace {

/// Nothing in the environment but this.
class Environment {
public:
    explicit Environment(const std::map<std::string, std::string>& variables) {
        for (const char* name : {"RANK",
                                 "WORLD_SIZE",
                                 "LOCAL_RANK",
                                 "LOCAL_WORLD_SIZE",
                                 "MASTER_ADDR",
                                 "MASTER_PORT",
                                 "TORCHELASTIC_RUN_ID",
                                 "OMPI_COMM_WORLD_RANK",
                                 "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                                 "PMIX_NAMESPACE",
                                 "SLURM_PROCID",
                                 "SLURM_LOCALID",
                                 "SLURM_STEP_NUM_TASKS",
                                 "SLURM_STEP_TASKS_PER_NODE",
                                 "SLURM_NODEID",
                                 "SLURM_STEP_NODELIST",
                                 "SLURM_NODELIST",
                                 "SLURM_JOB_ID",
                                 "SLURM_STEP_ID",
                                 "LOCKSTEP_STORE_TOKEN"})
            unsetenv(name);
        for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
    }
};

std::string wrong_place(const std::map<std::string, std::string>& variables) {
    const Environment environment(variables);
    return message_of<InvalidArgument>([] { process_place(); });
}

int free_port() { return TcpStoreServer{TcpStoreOptions{}}.port(); }

/// What each of `count` threads throws, or an empty string.
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

RendezvousOptions member(const std::string& method, int rank, int world_size, int timeout_ms = 20000) {
    return {.init_method = method, .rank = rank, .world_size = world_size, .timeout = milliseconds(timeout_ms)};
}

}  // namespace

TEST_CASE("ranks and addresses come from whatever launcher there was") {
    {
        const Environment nothing({});
        const ProcessPlace place = process_place();
        CHECK(place.launcher == Launcher::none);
        CHECK(place.rank == 0);
        CHECK(place.world_size == 1);
    }
    {
        const Environment by_hand(
            {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "2000"}});
        const ProcessPlace place = process_place();
        CHECK(place.launcher == Launcher::environment);
        CHECK(place.rank == 3);
        CHECK(place.world_size == 4);
        CHECK(place.local_rank == 3);
        CHECK(place.master_addr == "10.0.0.1");
        CHECK(place.master_port == 2000);
    }
    {
        const Environment torchrun({{"RANK", "3"},
                                    {"WORLD_SIZE", "4"},
                                    {"LOCAL_RANK", "1"},
                                    {"LOCAL_WORLD_SIZE", "2"},
                                    {"MASTER_ADDR", "node0"},
                                    {"MASTER_PORT", "29500"},
                                    {"TORCHELASTIC_RUN_ID", "none"}});
        const ProcessPlace place = process_place();
        CHECK(place.launcher == Launcher::torchrun);
        CHECK(place.local_rank == 1);
        CHECK(place.local_world_size == 2);
        CHECK(place.master_addr == "node0");
        setenv("LOCAL_WORLD_SIZE", "4", 1);
        CHECK(process_place().master_addr == "127.0.0.1");
    }
    {
        const Environment mpirun({{"OMPI_COMM_WORLD_RANK", "1"},
                                  {"OMPI_COMM_WORLD_SIZE", "2"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                  {"PMIX_NAMESPACE", "1234567"}});
        const ProcessPlace place = process_place();
        CHECK(place.launcher == Launcher::open_mpi);
        CHECK(place.rank == 1);
        CHECK(place.master_addr == "127.0.0.1");
        CHECK(place.master_port >= 10000);
        CHECK(place.master_port < 30000);
        setenv("PMIX_NAMESPACE", "1234568", 1);
        CHECK(process_place().master_port != place.master_port);
    }
    for (const auto& [list, first] : std::map<std::string, std::string>{
             {"gpu[03-05,09],login", "gpu03"}, {"gpu[7,9]-ib", "gpu7-ib"}, {"one,two", "one"}, {"single", "single"}}) {
        const Environment srun({{"SLURM_PROCID", "5"},
                                {"SLURM_LOCALID", "1"},
                                {"SLURM_STEP_NUM_TASKS", "8"},
                                {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                                {"SLURM_STEP_NODELIST", list},
                                {"SLURM_JOB_ID", "42"},
                                {"SLURM_STEP_ID", "0"}});
        const ProcessPlace place = process_place();
        CHECK(place.launcher == Launcher::slurm);
        CHECK(place.rank == 5);
        CHECK(place.local_rank == 1);
        CHECK(place.local_world_size == 4);
        CHECK(place.master_addr == first);
    }
    for (const auto& [node, tasks] : std::map<std::string, int>{{"0", 4}, {"1", 4}, {"2", 3}, {"3", 12}}) {
        const Environment srun({{"SLURM_PROCID", "5"},
                                {"SLURM_LOCALID", "2"},
                                {"SLURM_STEP_NUM_TASKS", "23"},
                                {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3,12"},
                                {"SLURM_NODEID", node},
                                {"SLURM_STEP_NODELIST", "gpu[1-4]"}});
        CHECK(process_place().local_world_size == tasks);
    }
}

TEST_CASE("environments that cannot be are refused") {
    CHECK(contains(wrong_place({{"RANK", "0"}}), "WORLD_SIZE"));
    CHECK(contains(wrong_place({{"WORLD_SIZE", "2"}}), "RANK"));
    CHECK(contains(wrong_place({{"RANK", "two"}, {"WORLD_SIZE", "2"}}), "RANK=two"));
    CHECK(contains(wrong_place({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), "RANK=-1"));
    CHECK(contains(wrong_place({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "rank 2 of 2"));
    CHECK(contains(wrong_place({{"RANK", "0"}, {"WORLD_SIZE", "0"}}), "WORLD_SIZE=0"));
    CHECK(contains(wrong_place({{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
                   "local rank 2 of 2"));
    CHECK(contains(wrong_place({{"MASTER_PORT", "70000"}}), "MASTER_PORT=70000"));
    CHECK(contains(wrong_place({{"OMPI_COMM_WORLD_RANK", "0"}}), "OMPI_COMM_WORLD_SIZE"));
    for (const char* tasks : {"4(x2", "four", "2,", "2(x1)", "0(x2)", "2,(x2)"})
        CHECK(contains(wrong_place({{"SLURM_PROCID", "0"},
                                    {"SLURM_LOCALID", "0"},
                                    {"SLURM_STEP_NUM_TASKS", "4"},
                                    {"SLURM_STEP_TASKS_PER_NODE", tasks},
                                    {"SLURM_NODEID", "1"}}),
                       "SLURM_STEP_TASKS_PER_NODE"));
    const Environment nothing({});
    for (const char* method : {"", "env", "udp://a:1", "tcp://", "tcp://host", "tcp://host:0", "tcp://host:99999",
                               "tcp://host:1?size=2", "file://", "file://relative", "env://x", "tcp://host:1?rank=-1"})
        CHECK(contains(
            message_of<InvalidArgument>([&] { Rendezvous({.init_method = method, .rank = 0, .world_size = 1}); }),
            "init method"));
    CHECK(contains(message_of<InvalidArgument>([] { Rendezvous({.rank = 0}); }), "both"));
    CHECK(contains(message_of<InvalidArgument>([] { Rendezvous(member("tcp://127.0.0.1:1", 2, 2)); }), "rank 2 of 2"));
    CHECK(contains(message_of<InvalidArgument>([] { Rendezvous(member("tcp://127.0.0.1:1?rank=1", 0, 2)); }),
                   "0 and as 1"));
    const Environment without_address({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
    CHECK(contains(message_of<InvalidArgument>([] { Rendezvous(); }), "MASTER_ADDR"));
}

TEST_CASE("all ranks find each other, by address and by file") {
    const Environment nothing({});
    const bool by_file = GENERATE(false, true);
    const test::TemporaryDirectory directory;
    const std::filesystem::path file = directory / "store";
    const int world_size = GENERATE(1, 2, 5);
    const std::string method = by_file ? "file://" + file.string() : "tcp://127.0.0.1:" + std::to_string(free_port());
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

TEST_CASE("a job of one process needs nobody") {
    const Environment nothing({});
    const Rendezvous job;
    CHECK(job.world_size() == 1);
    CHECK(job.store()->add("n", 2) == 2);
}

TEST_CASE("under torchrun the store lies beside the agent's port") {
    std::unique_ptr<TcpStoreServer> agent, stranger;
    for (int i = 0; i < 50 && !stranger; ++i) {  // of another job: the port may be anybody's
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
        if (rank == 0) std::this_thread::sleep_for(milliseconds(300));  // the others look for it meanwhile
        const Rendezvous job({.rank = rank, .world_size = 3, .timeout = milliseconds(20000)});
        CHECK(job.store()->add("came", 1) <= 3);
    });
    for (const std::string& error : errors) CHECK(error.empty());
}

TEST_CASE("the address of rank 0 comes from the environment, also where the rank does not") {
    const Environment address({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(free_port())}});
    for (const std::string& error :
         errors_of(2, [&](int rank) { Rendezvous({.rank = rank, .world_size = 2, .timeout = milliseconds(20000)}); }))
        CHECK(error.empty());
}

TEST_CASE("who dies, fails or leaves is told to those who look") {
    const Environment nothing({});
    const std::string method = "tcp://127.0.0.1:" + std::to_string(free_port());
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
        CHECK(job.store()->get("departed", milliseconds(10000)) == "1 " + how + "\n");
        waitpid(child, nullptr, 0);
        if (how == "died") job.failure()->note();  // nobody waits for it then
    }
}

TEST_CASE("ranks that do not come are named, on every rank that did") {
    const Environment nothing({});
    const std::string method = "tcp://127.0.0.1:" + std::to_string(free_port());
    const auto begin = std::chrono::steady_clock::now();
    const auto errors = errors_of(2, [&](int i) { Rendezvous(member(method, 2 * i, 4, i == 0 ? 300 : 20000)); });
    for (const std::string& error : errors) CHECK(contains(error, "of 4 processes ranks 1, 3 have not arrived"));
    CHECK(std::chrono::steady_clock::now() - begin < milliseconds(10000));
}

TEST_CASE("ranks whose patience ends at the same time all hear who did not come, and leave no file") {
    const Environment nothing({});
    const test::TemporaryDirectory directory;
    const bool by_file = GENERATE(false, true);
    for (int round = 0; round < 5; ++round) {
        const std::string method =
            by_file ? "file://" + (directory / "store").string() : "tcp://127.0.0.1:" + std::to_string(free_port());
        for (const std::string& error : errors_of(3, [&](int i) { Rendezvous(member(method, i, 4, 300)); })) {
            CAPTURE(error);
            CHECK(contains(error, "rank 3 has not arrived"));
        }
        CHECK(directory.file_count() == 0);
    }
}

TEST_CASE("a rank that is there twice, or counts otherwise, is refused") {
    const Environment nothing({});
    const test::TemporaryDirectory directory;
    const std::string file = directory / "store";
    std::atomic<int> refused{0};
    const auto twice = errors_of(3, [&](int i) {
        while (i == 2 && refused == 0) std::this_thread::yield();  // rank 0 comes when one rank 1 has been sent away
        try {
            Rendezvous(member("file://" + file, i == 2 ? 0 : 1, 2));
        } catch (const CommunicationError&) {
            ++refused;
            throw;
        }
    });
    CHECK(twice[2].empty());
    CHECK(twice[0].empty() != twice[1].empty());
    CHECK(contains(twice[0] + twice[1], "rank 1 of 2 is there twice"));
    std::filesystem::remove(file);

    const std::string method = "tcp://127.0.0.1:" + std::to_string(free_port());
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string& error : errors_of(2, [&](int i) { Rendezvous(member(method, i, 2 + i)); }))
        CHECK((contains(error, "was started for") || contains(error, "has gone")));  // its store may go first
    CHECK(std::chrono::steady_clock::now() - begin < milliseconds(10000));

    FileStore left_over(file);
    left_over.set("lockstep/world_size", "7");
    const std::string size = message_of<CommunicationError>([&] { Rendezvous(member("file://" + file, 0, 2)); });
    CHECK(contains(size, "started for 2 processes, others for 7"));
    CHECK(contains(size, "earlier run"));
}

TEST_CASE("an address that other machines reach needs a token") {
    const Environment nothing({});
    const std::string method = "tcp://0.0.0.0:" + std::to_string(free_port());
    CHECK(contains(message_of<InvalidArgument>([&] { Rendezvous(member(method, 0, 2)); }), "token"));
    setenv("LOCKSTEP_STORE_TOKEN", "shared", 1);
    const auto errors = errors_of(2, [&](int rank) { Rendezvous(member(method, rank, 2)); });
    for (const std::string& error : errors) CHECK(error.empty());
}
