// Ranks started by others: torchrun, mpirun, or the user by hand.
#include <unistd.h>

#include <memory>

#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/parallel/launch/lockstep_run.h"

using namespace lockstep::test;

namespace {

constexpr int world_size = 3;

/// Lines of three ranks that have joined, according to variables of `launcher`.
Words all_joined(int launcher) {
    Words lines;
    for (int rank = 0; rank < world_size; ++rank)
        lines.push_back(fmt::format("joined {}/{} launcher {} sum 5", rank, world_size, launcher));
    return lines;
}

using Rank = std::pair<Words, Words>;  // command and environment

void check_joined(const std::vector<Rank>& ranks) {
    std::vector<std::unique_ptr<StartedProcess>> processes;
    for (const auto& [command, environment] : ranks)
        processes.push_back(
            std::make_unique<StartedProcess>(command, StartedProcess::Options{.environment = environment}));
    Words lines;
    for (const auto& process : processes) {
        CHECK(process->status() == 0);
        CHECK(process->err().empty());
        lines.push_back(process->out());
        lines.back().pop_back();
    }
    CHECK(lines == all_joined(1));
}

}  // namespace

TEST_CASE("by hand, through the environment") {
    const lockstep::Descriptor held = lockstep::hold_free_port();
    const std::string port = std::to_string(port_of(held));
    std::vector<Rank> ranks;
    for (int rank = 0; rank < world_size; ++rank)
        ranks.push_back({{LAUNCH_WORKER, "join"},
                         {fmt::format("RANK={}", rank), fmt::format("WORLD_SIZE={}", world_size),
                          "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port}});
    check_joined(ranks);
}

TEST_CASE("by hand, with an init method") {
    const TemporaryDirectory directory;
    const bool file = GENERATE(false, true);
    const lockstep::Descriptor held = lockstep::hold_free_port();
    const std::string method =
        file ? "file://" + (directory / "store").string() : fmt::format("tcp://127.0.0.1:{}", port_of(held));
    const bool in_query = GENERATE(false, true);
    std::vector<Rank> ranks;
    for (int rank = 0; rank < world_size; ++rank)
        ranks.push_back(
            {{LAUNCH_WORKER, in_query ? fmt::format("join={}?rank={}&world_size={}", method, rank, world_size)
                                      : fmt::format("join={}/{}@{}", rank, world_size, method)},
             {}});
    check_joined(ranks);
    CHECK(directory.file_count() == 0);
}

TEST_CASE("under torchrun", "[.torchrun]") {
    const auto torchrun = found_launcher("LOCKSTEP_TORCHRUN", "torchrun");
    if (!torchrun) return;
    StartedProcess run({*torchrun, "--standalone", "--nproc-per-node", std::to_string(world_size), "--no-python",
                        LAUNCH_WORKER, "join"});
    CAPTURE(run.status(), run.err());
    CHECK(run.status() == 0);
    CHECK(run.lines() == all_joined(2));
    // Ranks that our launcher starts within a job of torchrun belong to our launcher: they must not look for torchrun's
    // agent.
    StartedProcess inner({*torchrun, "--standalone", "--nproc-per-node", "1", "--no-python", LOCKSTEP_RUN,
                          "--nproc-per-node", std::to_string(world_size), LAUNCH_WORKER, "join"});
    CHECK(inner.status() == 0);
    CHECK(inner.lines() == all_joined(1));
}

TEST_CASE("under mpirun", "[.mpirun]") {
    const auto mpirun = found_launcher("LOCKSTEP_MPIRUN", "mpirun");
    if (!mpirun) return;
    Words command{*mpirun, "--oversubscribe", "-n", std::to_string(world_size), LAUNCH_WORKER, "join"};
    if (::geteuid() == 0) command.insert(command.begin() + 1, "--allow-run-as-root");
    StartedProcess run(command);
    CAPTURE(run.status(), run.err());
    CHECK(run.status() == 0);
    CHECK(run.lines() == all_joined(3));
}
