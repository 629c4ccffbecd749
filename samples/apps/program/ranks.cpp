#include "lockstep/samples/apps/program/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <set>
#include <utility>

#include "lockstep/parallel/comm/launcher.h"
#include "lockstep/runtime/error.h"
#include "lockstep/samples/apps/program/command_line.h"

namespace program {

namespace {

constexpr std::chrono::seconds usual_timeout(300);

CLI::Validator is_init_method() {
    const auto complaint = [](const std::string& text) {
        for (const char* scheme : {"env://", "tcp://", "file://"})
            if (text.starts_with(scheme)) return std::string();
        return "value is " + text + "; expected env://, tcp://HOST:PORT or file:///PATH";
    };
    return {complaint, ""};
}

/// Reads the backends when the flag is checked, because a malformed LOCKSTEP_BACKENDS is an error.
CLI::Validator is_backend() {
    const auto complaint = [](const std::string& text) {
        std::vector<std::string> names;
        for (const auto& backend : lockstep::process_group_backends()) names.push_back(backend.name);
        return std::find(names.begin(), names.end(), text) != names.end()
                   ? std::string()
                   : fmt::format("value is {}; expected {}", text, fmt::join(names, ", "));
    };
    return {complaint, ""};
}

/// NCCL if every rank has its own GPU; otherwise the default of ProcessGroup.
std::string usual_backend(const std::string& devices, int ranks) {
    if (devices != "all" && !devices.starts_with("cuda")) return {};
    if (!lockstep::unusable_reason("nccl").empty()) return {};
    try {
        std::set<std::string> gpus;
        const auto all = lockstep::Devices::parse(devices);
        for (const lockstep::Device device : all) gpus.insert(lockstep::device_info(device).bus_id);
        const int apart = static_cast<int>(gpus.size());
        return apart == all.size() && ranks <= apart ? "nccl" : "";
    } catch (const lockstep::InvalidArgument&) {  // chosen_devices reports the error in the list
        return {};
    }
}

void require_no_mpi(const RankFlags& flags) {
    if (flags.backend == "mpi")
        throw UsageError("--backend mpi: no MPI launcher found; expected processes started by mpirun");
}

void launch_and_wait(lockstep::LaunchOptions& launch, int processes) {
    launch.processes = processes;
    launch.same_lines_once = true;
    launch.stop_grace = std::chrono::hours(24);  // ranks save; a repeated signal ends the wait
    const lockstep::LaunchResult result = lockstep::launch(launch);
    if (result.success()) return;
    if (result.signal != 0) {
        if (result.killed) end_line_on_terminal();
        throw Stopped({result.signal, result.killed ? result.str() : ""}, Stopped::As::program);
    }
    // One of them received a signal of --stop-signals, and all have stopped.
    if (const int signal = result.failure->exit_status - 128; !result.killed && signal > 0 && signal < NSIG)
        throw Stopped({signal, ""}, Stopped::As::program);
    if (!result.failure->silent && !result.failure->last_lines.empty())
        if (const int status = result.failure->exit_status; status == 1 || status == 2) throw RanksFailed(status);
    end_line_on_terminal();
    throw lockstep::CommunicationError(result.str());
}

}  // namespace

void add_flags_of_backend(CLI::App& app, RankFlags& flags, const std::string& group) {
    app.option_defaults()->group(group);
    app.add_option("--backend", flags.backend,
                   "backend of the process group; default nccl if each rank has its own GPU, else shm")
        ->type_name("shm|gloo|nccl|mpi")
        ->check(is_backend());
    app.add_option("--timeout", flags.timeout_seconds, "seconds after which an unresponsive process is an error")
        ->type_name("SECONDS")
        ->transform(is_whole(1, std::int64_t{1} << 31))
        ->default_str(std::to_string(usual_timeout.count()));
}

void add_flags_of_ranks(CLI::App& app, RankFlags& flags, const std::string& group) {
    add_flags_of_backend(app, flags, group);
    app.add_option("--launcher", flags.launcher, "expected launcher; default: detect")
        ->type_name("none|pytorch|mpi|slurm")
        ->check(CLI::IsMember({"none", "pytorch", "mpi", "slurm"}).description(""))
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app.add_option("--init-method", flags.init_method, "rendezvous: env://, tcp://HOST:PORT or file:///PATH")
        ->type_name("URL")
        ->check(is_init_method())
        ->capture_default_str();
    auto* rank = app.add_option("--rank", flags.rank, "rank of this process, if no launcher sets it")
                     ->type_name("N")
                     ->transform(is_whole(0, 1 << 20));
    auto* world = app.add_option("--world-size", flags.world_size, "number of processes, if no launcher sets it")
                      ->type_name("N")
                      ->transform(is_whole(1, 1 << 20));
    rank->needs(world);
    world->needs(rank);
}

void require_launcher(const RankFlags& flags) {
    using lockstep::Launcher;
    if (flags.launcher.empty()) return;
    struct Sign {
        const char* name;
        const char* evidence;
    };
    const auto sign_of = [](Launcher launcher) -> Sign {
        switch (launcher) {
            case Launcher::none:
                return {"none", "no launcher found: RANK and the variables of mpirun and srun are unset"};
            case Launcher::environment:
            case Launcher::torchrun: return {"pytorch", "RANK and WORLD_SIZE are set and have precedence"};
            case Launcher::open_mpi: return {"mpi", "started by mpirun"};
            case Launcher::slurm: return {"slurm", "started by srun"};
        }
        return {"", ""};
    };
    const Sign found = sign_of(lockstep::rank_info().launcher);
    if (flags.launcher != found.name)
        throw UsageError("--launcher " + flags.launcher + ": " + found.evidence + "; expected --launcher " +
                         found.name);
}

bool has_no_launcher(const RankFlags& flags) {
    return !flags.rank && lockstep::rank_info().launcher == lockstep::Launcher::none &&
           flags.init_method.find("rank=") == std::string::npos;
}

void launch_ranks(const RankFlags& flags, int processes, std::vector<std::string> command) {
    require_no_mpi(flags);
    if (!flags.backend.empty()) lockstep::require_usable(flags.backend);  // reported once, not by every rank
    lockstep::LaunchOptions launch;
    launch.command = std::move(command);
    if (!flags.launcher.empty()) launch.command.emplace_back("--launcher=pytorch");  // this program is their launcher
    launch_and_wait(launch, processes);
}

void launch_ranks(const RankFlags& flags, int processes, const std::function<void()>& function) {
    require_no_mpi(flags);
    lockstep::LaunchOptions launch;
    launch.function = [&](const lockstep::RankInfo&) {
        function();
        require_output();
    };
    launch_and_wait(launch, processes);
}

std::shared_ptr<lockstep::ProcessGroup> join_ranks(const RankFlags& flags, const std::string& devices) {
    if (flags.rank && *flags.rank >= *flags.world_size)
        throw UsageError("--rank: rank is " + std::to_string(*flags.rank) + " of --world-size " +
                         std::to_string(*flags.world_size) + "; expected less than the world size");
    const std::chrono::seconds timeout(flags.timeout_seconds.value_or(usual_timeout.count()));
    const int ranks_here = flags.world_size.value_or(lockstep::rank_info().local_world_size);
    try {
        return std::make_shared<lockstep::ProcessGroup>(lockstep::ProcessGroupOptions{
            .backend = flags.backend.empty() ? usual_backend(devices, ranks_here) : flags.backend,
            .rendezvous = {.init_method = flags.init_method,
                           .rank = flags.rank,
                           .world_size = flags.world_size,
                           .time_limit = timeout},
            .time_limit = timeout});
    } catch (const lockstep::InvalidArgument& error) {  // flags or environment variables
        throw UsageError(error.what());
    }
}

}  // namespace program
