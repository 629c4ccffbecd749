#include "lockstep/samples/program/ranks.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <utility>

#include "lockstep/parallel/launcher.h"
#include "lockstep/runtime/error.h"
#include "lockstep/samples/program/command_line.h"

namespace program {

void add_flags_of_ranks(CLI::App& app, RankFlags& flags, const std::string& when) {
    const auto range = [](auto low, auto high) { return CLI::Validator(CLI::Range(low, high)).description(""); };
    app.add_option("--backend", flags.backend, "how processes talk" + when + "; shm unless given; nccl is for GPUs")
        ->type_name("shm|gloo|nccl|mpi");
    app.add_option("--init-method", flags.init_method, "how processes find each other" + when)
        ->type_name("env://|tcp://HOST:PORT|file:///PATH")
        ->capture_default_str();
    auto* rank = app.add_option("--rank", flags.rank, "of this process, where no launcher says it" + when)
                     ->type_name("N")
                     ->check(range(0, 1 << 20));
    auto* world = app.add_option("--world-size", flags.world_size, "how many processes there are" + when)
                      ->type_name("N")
                      ->check(range(1, 1 << 20));
    rank->needs(world);
    world->needs(rank);
    app.add_option("--timeout", flags.timeout_seconds, "seconds after which a silent process is given up" + when)
        ->type_name("SECONDS")
        ->check(range(std::int64_t{1}, std::int64_t{1} << 31))
        ->capture_default_str();
}

bool nobody_launched(const RankFlags& flags) {
    return !flags.rank && lockstep::process_place().launcher == lockstep::Launcher::none &&
           flags.init_method.find("rank=") == std::string::npos;
}

void launch_ranks(const RankFlags& flags, int processes, std::vector<std::string> command) {
    if (flags.backend == "mpi") throw UsageError("--backend mpi: start the processes with mpirun");
    lockstep::LaunchOptions launch;
    launch.command = std::move(command);
    launch.processes = processes;
    const lockstep::LaunchResult result = lockstep::launch(launch);
    if (!result.success()) throw lockstep::CommunicationError(result.str());
}

std::shared_ptr<lockstep::ProcessGroup> join_ranks(const RankFlags& flags) {
    const std::chrono::seconds timeout(flags.timeout_seconds);
    return std::make_shared<lockstep::ProcessGroup>(lockstep::ProcessGroupOptions{
        .backend = flags.backend,
        .rendezvous =
            {.init_method = flags.init_method, .rank = flags.rank, .world_size = flags.world_size, .timeout = timeout},
        .timeout = timeout});
}

}  // namespace program
