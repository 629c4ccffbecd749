// Starts a program once per device, each process with its rank and its share of the cores, and reports how they ended.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <iostream>
#include <limits>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "lockstep/parallel/comm/launcher.h"
#include "lockstep/runtime/error.h"
#include "lockstep/samples/apps/program/command_line.h"

namespace ls = lockstep;

namespace {

/// The flags as given.
struct Flags {
    std::string processes = "auto", tee, redirects, signals = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2,SIGXCPU";
    bool standalone = false, no_binding = false;
    std::optional<double> grace;
    ls::LaunchOptions launch;
};

/// "--node-rank,--node_rank": torchrun accepts both.
std::string both(const std::string& flag) {
    std::string other = flag;
    for (std::size_t i = flag.rfind("--") + 2; i < other.size(); ++i)
        if (other[i] == '-') other[i] = '_';
    return flag + "," + other.substr(flag.rfind("--"));
}

CLI::Validator is_one_number() {
    const auto complaint = [](const std::string& text) {
        return text.find(':') == std::string::npos ? std::string()
                                                   : "elastic range " + text + " is not supported; expected one number";
    };
    return {complaint, ""};
}

CLI::Validator is_grace() {
    const auto complaint = [](const std::string& text) {
        const std::optional<double> seconds = program::number_of(text);
        return seconds && *seconds >= 0 && *seconds <= 86400 ? std::string()
                                                             : "value is " + text + "; expected 0 to 86400 seconds";
    };
    return {complaint, ""};
}

void add_flags(CLI::App& app, Flags& flags) {
    const CLI::Validator is_number =
        program::is_whole((std::numeric_limits<int>::min)(), (std::numeric_limits<int>::max)());
    auto& launch = flags.launch;
    app.option_defaults()->group("Job");
    app.add_option(both("--nproc-per-node"), flags.processes,
                   "processes on this machine: a number, or one per device, core or GPU")
        ->type_name("N|auto|cpu|gpu")
        ->capture_default_str();
    app.add_option("--nnodes", launch.nodes, "number of machines, each with its own lockstep-run")
        ->type_name("N")
        ->transform(is_number)
        ->transform(is_one_number())
        ->capture_default_str();
    app.add_option(both("--node-rank"), launch.node_rank,
                   "number of this machine, from 0; required with several machines")
        ->type_name("N")
        ->transform(is_number);
    auto* address = app.add_option(both("--master-addr"), launch.master_addr,
                                   "address of rank 0; required with several machines; default 127.0.0.1")
                        ->type_name("HOST");
    auto* port = app.add_option(both("--master-port"), launch.master_port,
                                "port of rank 0; required with several machines; default a free one")
                     ->type_name("PORT")
                     ->transform(program::is_whole(1, 65535));
    app.add_flag("--standalone", flags.standalone, "this machine only and a free port (the default)")
        ->excludes(address)
        ->excludes(port);
    app.add_flag(both("--no-binding"), flags.no_binding,
                 "let each rank use all cores instead of its share, near its memory");
    app.option_defaults()->group("Failures and signals");
    app.add_option(both("--max-restarts"), launch.max_restarts,
                   "restarts of all ranks after a failure; on one machine only")
        ->type_name("N")
        ->transform(is_number)
        ->capture_default_str();
    app.add_option("--signals", flags.signals, "signals to forward to all ranks; default below")->type_name("LIST");
    app.add_option("--grace", flags.grace,
                   "time limit for ranks to end after a failure (default 5) or a signal (default 30)")
        ->type_name("SECONDS")
        ->check(is_grace());
    app.option_defaults()->group("Output");
    app.add_flag("--prefix", launch.prefix, "print \"[rank]:\" before every line of a rank");
    app.add_option(both("--log-dir"), launch.log_dir,
                   "directory for attempt_A/RANK/stdout.log and stderr.log; sets --tee to 3")
        ->type_name("DIR");
    app.add_option("-r,--redirects", flags.redirects,
                   "file-only streams: 0 none, 1 stdout, 2 stderr, 3 both, or per local rank (0:3,1:1)")
        ->type_name("STREAMS");
    app.add_option("-t,--tee", flags.tee, "streams to files and, with a prefix, to the console; same values")
        ->type_name("STREAMS");
    app.prefix_command();
    app.footer(
        "PROGRAM [ARGS...] follows the flags. Each rank has RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, "
        "GROUP_RANK,\nMASTER_ADDR, MASTER_PORT and TORCHELASTIC_RESTART_COUNT in its environment. With several "
        "machines, set\nLOCKSTEP_STORE_TOKEN to the same secret on all of them; on one it is random.\n"
        "SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 and SIGXCPU are forwarded. The first four end the run, the "
        "others\nonly if a rank dies of them. --grace is also the time between SIGTERM and SIGKILL. A repeated signal "
        "kills the ranks.\n"
        "Exit status: 0 if all ranks succeeded, 1 if one failed or a signal ended the run, 2 for a usage error. "
        "Underscores and\nhyphens in flags are interchangeable.");
}

/// "SIGTERM,INT,10"
std::vector<int> signals_of(const std::string& list) {
    std::vector<int> signals;
    for (const std::string& word : CLI::detail::split(list, ',')) {
        const std::string name = word.rfind("SIG", 0) == 0 ? word.substr(3) : word;
        int found = 0;
        for (int signal = 1; signal < NSIG; ++signal) {
            const char* known = sigabbrev_np(signal);
            if ((known && name == known) || name == std::to_string(signal)) found = signal;
        }
        if (found == 0)
            throw program::UsageError(
                fmt::format("--signals: unknown signal '{}'; expected a list such as SIGTERM,SIGINT", word));
        signals.push_back(found);
    }
    return signals;
}

/// One entry per local rank of torchrun's "3" or "0:3,1:1".
std::vector<ls::Streams> streams_of(const char* flag, const std::string& text, int processes) {
    if (text.empty()) return {};
    const auto wrong = [&](const std::string& part) {
        throw program::UsageError(
            fmt::format("{}: value is '{}'; expected 0 to 3, or a list such as 0:3,1:1 of local ranks below {}", flag,
                        part, processes));
    };
    const auto streams = [&](const std::string& digit) {
        if (digit.size() != 1 || digit[0] < '0' || digit[0] > '3') wrong(text);
        return static_cast<ls::Streams>(digit[0] - '0');
    };
    const auto count = static_cast<std::size_t>(processes);
    if (text.find(':') == std::string::npos) return std::vector<ls::Streams>(count, streams(text));
    std::vector<ls::Streams> all(count, ls::Streams::none);
    std::set<std::size_t> named;
    for (const std::string& entry : CLI::detail::split(text, ',')) {
        const auto colon = std::min(entry.find(':'), entry.size());
        std::size_t rank = 0;
        const auto [end, error] = std::from_chars(entry.data(), entry.data() + colon, rank);
        if (colon == entry.size() || error != std::errc() || end != entry.data() + colon || rank >= count) wrong(entry);
        if (!named.insert(rank).second)
            throw program::UsageError(
                fmt::format("{}: duplicate local rank {} in {}; expected each rank once", flag, rank, text));
        all[rank] = streams(entry.substr(colon + 1));
    }
    return all;
}

/// The program and its arguments: everything after the flags.
std::vector<std::string> command_of(const CLI::App& app) {
    std::vector<std::string> command = app.remaining();
    if (!command.empty() && command.front() == "--") command.erase(command.begin());
    if (command.empty())
        throw program::UsageError("no program; expected PROGRAM after the flags (--help shows all flags)");
    if (command.front().rfind('-', 0) == 0)
        throw program::UsageError(fmt::format(
            "unknown flag {}; expected flags of the program after its name (--help shows all flags)", command.front()));
    return command;
}

ls::LaunchOptions options_of(const CLI::App& app, Flags& flags) {
    ls::LaunchOptions& launch = flags.launch;
    if (flags.standalone && launch.nodes > 1)
        throw program::UsageError(fmt::format("--standalone: --nnodes is {}; expected 1", launch.nodes));
    launch.command = command_of(app);
    launch.processes = ls::processes_per_node(flags.processes);
    launch.bind_cores = !flags.no_binding;
    launch.forwarded_signals = signals_of(flags.signals);
    if (flags.grace)
        launch.grace = launch.stop_grace = std::chrono::milliseconds(static_cast<std::int64_t>(*flags.grace * 1000));
    launch.redirects = streams_of("--redirects", flags.redirects, launch.processes);
    const bool only_directory = !launch.log_dir.empty() && flags.tee.empty() && flags.redirects.empty();
    launch.tee = streams_of("--tee", only_directory ? "3" : flags.tee, launch.processes);
    return launch;
}

void print_last_lines(const ls::RankFailure& failure) {
    if (failure.last_lines.empty()) return;
    std::cerr << fmt::format("lockstep-run: last lines of rank {} on stderr:\n  {}\n", failure.rank,
                             fmt::join(failure.last_lines, "\n  "));
}

void run(ls::LaunchOptions options) {
    int restarts = 0;
    options.on_restart = [&](const ls::RankFailure& failure) {
        print_last_lines(failure);
        std::cerr << fmt::format("lockstep-run: {}; restarting all ranks, restart {} of {}\n", failure.str(),
                                 ++restarts, options.max_restarts);
    };
    const ls::LaunchResult result = ls::launch(options);
    if (result.success()) {
        if (result.lost_output) throw program::OutputLost();
        return;
    }
    if (result.signal != 0 || result.failure->signal != 0 || result.failure->silent) program::end_line_on_terminal();
    if (result.failure) print_last_lines(*result.failure);
    throw std::runtime_error(result.str());
}

}  // namespace

int main(int argc, char** argv) {
    Flags flags;
    CLI::App app("Start a program as the ranks of a job, one process per device, and report how they ended.",
                 "lockstep-run");
    add_flags(app, flags);
    return program::run(app, argc, argv, [&] {
        try {
            run(options_of(app, flags));
        } catch (const ls::InvalidArgument& error) {
            throw program::UsageError(error.what());
        }
    });
}
