#include "lockstep/parallel/comm/launcher.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "lockstep/parallel/comm/launch/attempt.h"
#include "lockstep/parallel/comm/launch/signal_watch.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/parallel/comm/store/store_address.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/cpu_topology.h"
#include "lockstep/runtime/internal/process.h"

namespace lockstep {

namespace {

constexpr int max_processes = 1024;
constexpr int max_ranks_in_job = 1 << 20;  // limit of rank_info

/// 0 if it can be executed, otherwise the errno.
int access_error(const std::filesystem::path& file) {
    struct stat found {};
    if (stat(file.c_str(), &found) != 0) return errno;
    if (S_ISDIR(found.st_mode)) return EISDIR;
    return access(file.c_str(), X_OK) == 0 ? 0 : errno;
}

/// The file that the command names, found as a shell would.
std::filesystem::path program_of(const std::vector<std::string>& command) {
    if (command.empty() || command.front().empty())
        throw InvalidArgument("launch: no program; expected a program and its arguments");
    const std::string& name = command.front();
    if (name.find('/') != std::string::npos) {
        if (const int error = access_error(name); error != 0)
            throw InvalidArgument(fmt::format(
                "launch: {} cannot be executed: {}; {}", name, text_of(error),
                error == EACCES ? "set its x bit, or name the program that runs it" : "expected a program"));
        return name;
    }
    const char* variable = std::getenv("PATH");
    const std::string path = variable ? variable : "/usr/local/bin:/usr/bin:/bin";
    for (std::size_t at = 0; at <= path.size();) {
        const auto end = std::min(path.find(':', at), path.size());
        const std::filesystem::path file = std::filesystem::path(end == at ? "." : path.substr(at, end - at)) / name;
        if (access_error(file) == 0) return file;
        at = end + 1;
    }
    throw InvalidArgument(
        fmt::format("launch: program {} not found in PATH; expected its path, such as ./{}", name, name));
}

void require(bool good, const std::string& complaint) {
    if (!good) throw InvalidArgument("launch: " + complaint);
}

void require_nodes(const LaunchOptions& options) {
    const int node_rank = options.node_rank.value_or(0);
    require(
        node_rank >= 0 && node_rank < options.nodes,
        fmt::format("node rank {} of {} hosts; expected 0 to the number of hosts minus 1", node_rank, options.nodes));
    if (options.nodes == 1) return;
    require(options.node_rank && !options.master_addr.empty() && options.master_port != 0,
            fmt::format("{} hosts need node rank, master address and master port", options.nodes));
    require(
        options.max_restarts == 0,
        "ranks on several hosts cannot be restarted, because their launchers do not communicate; expected no restarts");
    const char* token = std::getenv("LOCKSTEP_STORE_TOKEN");
    require((token && *token) || is_loopback(host_of(options.master_addr, "launch: master address")),
            fmt::format("{} can be reached by other machines; set LOCKSTEP_STORE_TOKEN to the same secret on all hosts",
                        options.master_addr));
}

void require_streams(const LaunchOptions& options) {
    bool files = false;
    for (const auto* choice : {&options.redirects, &options.tee}) {
        require(choice->empty() || std::ssize(*choice) == options.processes,
                fmt::format(
                    "streams of {} local ranks were selected, but there are {}; expected one entry for each, or none",
                    choice->size(), options.processes));
        files = files || std::any_of(choice->begin(), choice->end(), [](Streams s) { return s != Streams::none; });
    }
    require(!files || !options.log_dir.empty(), "redirects and tee write files; expected a log directory");
    require(files || options.log_dir.empty(),
            fmt::format("no stream is written to {}; select some by redirects or tee", options.log_dir.string()));
}

void require_signals(const LaunchOptions& options) {
    for (const int signal : options.forwarded_signals)
        require(signal > 0 && signal < NSIG && signal != SIGKILL && signal != SIGSTOP && signal != SIGCHLD,
                fmt::format("{} cannot be forwarded", name_of_signal(signal)));
}

void require_sound(const LaunchOptions& options) {
    require(options.processes >= 1 && options.processes <= max_processes,
            fmt::format("{} processes on one machine; expected 1 to {}", options.processes, max_processes));
    require(options.nodes >= 1 && options.nodes <= max_ranks_in_job / options.processes,
            fmt::format("{} hosts of {} processes; expected at least one host, and at most {} processes in total",
                        options.nodes, options.processes, max_ranks_in_job));
    if (!options.master_addr.empty()) host_of(options.master_addr, "launch: master address");
    require(options.master_port >= 0 && options.master_port <= 65535,
            fmt::format("master port {}; expected 1 to 65535, or 0 for a free one", options.master_port));
    require(options.max_restarts >= 0, fmt::format("{} restarts; expected 0 or more", options.max_restarts));
    for (const auto grace : {options.grace, options.stop_grace})
        require(grace.count() >= 0 && grace <= std::chrono::hours(24),
                fmt::format("a grace of {} ms; expected 0 to one day", grace.count()));
    require_nodes(options);
    require_streams(options);
    require_signals(options);
}

/// Idle device threads end by themselves after a second.
void require_forkable() {
    std::string in_use = forked::in_use();
    for (int i = 0; i < 150 && !in_use.empty(); ++i, in_use = forked::in_use())
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    require(in_use.empty(), fmt::format("{} in use in this process, and ranks that call a function would lack them; "
                                        "launch before models and tensors are created, or launch a program",
                                        in_use));
    std::fflush(nullptr);  // otherwise each child would write the buffered output again
}

}  // namespace

void detail::require_success(const LaunchResult& result) {
    if (!result.success()) throw CommunicationError("launch: " + result.str());
}

void open_standard_streams() noexcept { internal::open_standard_streams(); }

LaunchResult launch(const LaunchOptions& options) {
    open_standard_streams();
    require_sound(options);
    if (options.function) {
        require(options.command.empty(), "both a program and a function; expected one of them");
        require_forkable();
    }
    const std::filesystem::path program = options.function ? std::filesystem::path() : program_of(options.command);
    std::vector<int> watched = options.forwarded_signals;
    watched.push_back(SIGCHLD);
    SignalWatch signals(watched);
    for (LaunchResult result;; ++result.restarts) {
        AttemptEnd end = run_attempt(options, program, result.restarts, signals);
        result.failure = std::move(end.failure);
        result.signal = end.signal;
        result.killed = end.killed;
        result.lost_output = result.lost_output || end.lost_output;
        if (result.success() || result.signal != 0 || result.restarts == options.max_restarts) return result;
        if (options.on_restart) options.on_restart(*result.failure);
    }
}

int processes_per_node(std::string_view text) {
    const int gpus = text == "gpu" || text == "auto" ? device_count(DeviceKind::cuda) : 0;
    if (text == "gpu")
        require(gpus > 0, fmt::format("a process per GPU, but no GPU found ({}); expected a number, or cpu",
                                      cuda_absence_reason()));
    if (gpus > 0) return gpus;
    if (text == "cpu") return static_cast<int>(allowed_cores().size());
    if (text == "auto") return Devices::visible().size();
    int count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    require(error == std::errc() && end == text.data() + text.size() && count >= 1 && count <= max_processes,
            fmt::format("'{}' processes on one machine; expected 1 to {}, auto, cpu or gpu", text, max_processes));
    return count;
}

std::vector<std::string> own_command(int argc, const char* const* argv) {
    std::error_code error;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
    std::vector<std::string> command{error ? std::string(argv[0]) : program.string()};
    command.insert(command.end(), argv + 1, argv + argc);
    return command;
}

}  // namespace lockstep
