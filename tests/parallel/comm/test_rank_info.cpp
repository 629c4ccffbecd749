// How a process determines its place in the job, and the errors for incomplete variables.
#include <chrono>
#include <cstdlib>
#include <map>
#include <string>

#include "lockstep/parallel/comm/rendezvous.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/parallel/comm/launcher_environment.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::Environment;
using lockstep::test::message_of;

namespace {

std::string wrong_place(const std::map<std::string, std::string>& variables) {
    const Environment environment(variables);
    return message_of<InvalidArgument>([] { rank_info(); });
}

RendezvousOptions member(const std::string& method, int rank, int world_size) {
    return {.init_method = method, .rank = rank, .world_size = world_size};
}

}  // namespace

TEST_CASE("ranks and addresses are those of the launcher") {
    {
        const Environment nothing({});
        const RankInfo info = rank_info();
        CHECK(info.launcher == Launcher::none);
        CHECK(info.rank == 0);
        CHECK(info.world_size == 1);
    }
    {
        const Environment by_hand(
            {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "2000"}});
        const RankInfo info = rank_info();
        CHECK(info.launcher == Launcher::environment);
        CHECK(info.rank == 3);
        CHECK(info.world_size == 4);
        CHECK(info.local_rank == 3);
        CHECK(info.master_addr == "10.0.0.1");
        CHECK(info.master_port == 2000);
    }
    {
        const Environment torchrun({{"RANK", "3"},
                                    {"WORLD_SIZE", "4"},
                                    {"LOCAL_RANK", "1"},
                                    {"LOCAL_WORLD_SIZE", "2"},
                                    {"MASTER_ADDR", "node0"},
                                    {"MASTER_PORT", "29500"},
                                    {"TORCHELASTIC_RUN_ID", "none"}});
        const RankInfo info = rank_info();
        CHECK(info.launcher == Launcher::torchrun);
        CHECK(info.local_rank == 1);
        CHECK(info.local_world_size == 2);
        CHECK(info.master_addr == "node0");
        setenv("LOCAL_WORLD_SIZE", "4", 1);
        CHECK(rank_info().master_addr == "127.0.0.1");
    }
    {
        const Environment mpirun({{"OMPI_COMM_WORLD_RANK", "1"},
                                  {"OMPI_COMM_WORLD_SIZE", "2"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                  {"PMIX_NAMESPACE", "1234567"}});
        const RankInfo info = rank_info();
        CHECK(info.launcher == Launcher::open_mpi);
        CHECK(info.rank == 1);
        CHECK(info.master_addr == "127.0.0.1");
        CHECK(info.master_port >= 10000);
        CHECK(info.master_port < 30000);
        setenv("PMIX_NAMESPACE", "1234568", 1);
        CHECK(rank_info().master_port != info.master_port);
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
        const RankInfo info = rank_info();
        CHECK(info.launcher == Launcher::slurm);
        CHECK(info.rank == 5);
        CHECK(info.local_rank == 1);
        CHECK(info.local_world_size == 4);
        CHECK(info.master_addr == first);
    }
    for (const auto& [node, tasks] : std::map<std::string, int>{{"0", 4}, {"1", 4}, {"2", 3}, {"3", 12}}) {
        const Environment srun({{"SLURM_PROCID", "5"},
                                {"SLURM_LOCALID", "2"},
                                {"SLURM_STEP_NUM_TASKS", "23"},
                                {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3,12"},
                                {"SLURM_NODEID", node},
                                {"SLURM_STEP_NODELIST", "gpu[1-4]"}});
        CHECK(rank_info().local_world_size == tasks);
    }
}

TEST_CASE("addresses are parsed in every usual form, and invalid ones are rejected with their text") {
    const auto host = [](const std::string& text) {
        const Environment job({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", text}});
        return rank_info().master_addr;
    };
    for (const auto& [text, expected] :
         std::vector<std::pair<std::string, std::string>>{{"[::1]", "::1"},
                                                          {" [fe80::1%eth0] ", "fe80::1%eth0"},
                                                          {"::1", "::1"},
                                                          {" node-7.cluster ", "node-7.cluster"},
                                                          {"node7.cluster.", "node7.cluster"},
                                                          {"\t127.0.0.1\n", "127.0.0.1"},
                                                          {"under_score", "under_score"}})
        CHECK(host(text) == expected);
    for (const char* text :
         {"[::1]:29500", "node7:29500", "[::1", "[127.0.0.1]", "[]", "two words", "tcp://node7", "node7/path", "  ",
          "n\xc3\xb6"
          "de"})
        CHECK(contains(wrong_place({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", text}}),
                       "MASTER_ADDR: '" + std::string(text) + "' "));
    for (const char* port : {"0", "65536", "-1", "70000", "29500x", " 29500", "0x10"})
        CHECK(contains(wrong_place({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", port}}),
                       "MASTER_PORT=" + std::string(port)));
    for (const char* method : {"tcp://[::1]", "tcp://[::1:29500", "tcp://:29500", "tcp:// :29500", "tcp://host:-1",
                               "tcp://host:70000", "tcp://host: 29500", "tcp://ho st:29500", "tcp://host:29500x"})
        CHECK(contains(
            message_of<InvalidArgument>([&] { Rendezvous({.init_method = method, .rank = 0, .world_size = 1}); }),
            method));
    const Descriptor held = hold_free_port();
    const std::string port = std::to_string(port_of(held));
    const Rendezvous alone({.init_method = "tcp:// [::1] :" + port, .rank = 0, .world_size = 1});
    CHECK(alone.store()->compare_set("key", "", "value") == "value");
}

TEST_CASE("contradictory environments are rejected") {
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
                   "is both 0 and 1"));
    const Environment without_address({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
    CHECK(contains(message_of<InvalidArgument>([] { Rendezvous(); }), "MASTER_ADDR"));
}
