// The program that tests of launchers start: executes its arguments in order. Prints lines that begin with the rank.
//   env          prints its place and cores
//   join[=M]     joins the job (init method M; "R/W@M": as rank R of W) and prints the sum of the ranks' numbers
//   pid=DIR      writes its process id to DIR/RANK
//   child=DIR    starts a process that sleeps, and writes its id to DIR/child.RANK
//   out=T err=T  prints a text verbatim
//   sleep=MS     pauses; after=FILE waits until the file exists
//   only=R       continues if it is rank R; other ranks wait ten minutes
//   skip=R       rank R ends with 0
//   until=N      continues in attempts before the N-th; later attempts exit with 0
//   exit=N       kill=SIGNAL
//   note=R       rank R reports a failure; slow=R continues two seconds later
//   missed=R     rank R reports that another rank has failed
//   stop=R       rank R stops itself; hang=R continues ten minutes later
//   trap=SIGNAL  from now on that signal prints a line and the rank exits with 0
//   count=SIGNAL from now on that signal prints a line; deaf=SIGNAL ignores it
//   input        reads its standard input to the end and prints its size
//   self=N       starts this program again as N ranks, with the same arguments, unless it is one of them; prints equal
//                lines of their standard error once
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/launcher.h"
#include "lockstep/parallel/comm/rendezvous.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/fixtures/waiting.h"

namespace {

std::string variable(const char* name) {
    const char* value = std::getenv(name);
    return value ? value : "-";
}

void print(const std::string& line) {
    const std::string text = variable("RANK") + " " + line + "\n";
    if (write(STDOUT_FILENO, text.data(), text.size()) < 0) _exit(99);
}

std::vector<int> cores() {
    cpu_set_t set;
    std::vector<int> list;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return list;
    for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &set)) list.push_back(core);
    return list;
}

void print_environment() {
    std::string line = "env";
    for (const char* name : {"LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
                             "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
                             "OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "LOCKSTEP_CPU_DEVICES", "LOCKSTEP_STORE_TOKEN"})
        line += fmt::format(" {}={}", name, variable(name));
    print(line + fmt::format(" cores={}", fmt::join(cores(), ",")));
}

void join(const std::string& how) {
    lockstep::RendezvousOptions options;
    options.time_limit = lockstep::test::no_limit;
    int rank = 0, world_size = 0, used = 0;
    if (std::sscanf(how.c_str(), "%d/%d@%n", &rank, &world_size, &used) == 2) {
        options.rank = rank;
        options.world_size = world_size;
    }
    if (how.size() > static_cast<std::size_t>(used)) options.init_method = how.substr(static_cast<std::size_t>(used));
    const lockstep::Rendezvous job(options);
    job.store()->set(fmt::format("square/{}", job.rank()), std::to_string(job.rank() * job.rank()));
    int sum = 0;
    for (int other = 0; other < job.world_size(); ++other)
        sum += std::stoi(job.store()->get(fmt::format("square/{}", other)));
    const std::string line = fmt::format("joined {}/{} launcher {} sum {}\n", job.rank(), job.world_size(),
                                         static_cast<int>(job.info().launcher), sum);
    if (write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(99);
}

void start_child(const std::string& directory) {
    const pid_t pid = fork();
    if (pid == 0) {
        sleep(600);
        _exit(0);
    }
    std::ofstream(directory + "/child." + variable("RANK")) << pid;
}

void on_signal(int number, bool ends) {
    static bool end_there = false;
    end_there = ends;
    std::signal(number, [](int signal) {
        char text[] = "0 got signal 00\n";
        text[0] = std::getenv("RANK")[0];
        text[13] = static_cast<char>('0' + signal / 10);
        text[14] = static_cast<char>('0' + signal % 10);
        if (write(STDOUT_FILENO, text, sizeof text - 1) < 0 || end_there) _exit(0);
    });
}

void pause_for(int milliseconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    while (std::chrono::steady_clock::now() < end) usleep(2000);  // signals do not cut it short
}

std::string read_input() {
    std::string all;
    char bytes[256];
    for (ssize_t count = 0; (count = read(STDIN_FILENO, bytes, sizeof bytes)) > 0;)
        all.append(bytes, static_cast<std::size_t>(count));
    return fmt::format("read {} bytes", all.size());
}

void perform(const std::string& name, const std::string& value, int argc, char** argv) {
    const int number = std::atoi(value.c_str());
    const int rank = std::atoi(variable("RANK").c_str());
    if (name == "env") print_environment();
    if (name == "join") join(value);
    if (name == "pid") std::ofstream(value + "/" + variable("RANK")) << getpid();
    if (name == "child") start_child(value);
    if (name == "out") std::fputs(value.c_str(), stdout), std::fflush(stdout);
    if (name == "err") std::fputs(value.c_str(), stderr);
    if (name == "sleep") pause_for(number);
    while (name == "after" && access(value.c_str(), F_OK) != 0) pause_for(5);
    if (name == "only" && rank != number) pause_for(600000);
    if (name == "skip" && rank == number) std::exit(0);
    if (name == "until" && std::atoi(variable("TORCHELASTIC_RESTART_COUNT").c_str()) >= number) std::exit(0);
    if (name == "exit") std::exit(number);
    if (name == "note" && rank == number) lockstep::report_failure();
    if (name == "slow" && rank == number) pause_for(2000);
    if (name == "missed" && rank == number) lockstep::report_failure(lockstep::FailureCause::other_rank);
    if (name == "stop" && rank == number) std::raise(SIGSTOP);
    if (name == "hang" && rank == number) pause_for(600000);
    if (name == "kill") std::raise(number);
    if (name == "trap") on_signal(number, true);
    if (name == "count") on_signal(number, false);
    if (name == "deaf") std::signal(number, SIG_IGN);
    if (name == "input") print(read_input());
    if (name == "self" && lockstep::rank_info().launcher == lockstep::Launcher::none) {
        lockstep::LaunchOptions options;
        options.command = lockstep::own_command(argc, argv);
        options.processes = number;
        options.same_lines_once = true;
        const lockstep::LaunchResult result = lockstep::launch(options);
        std::fprintf(stderr, "launched: %s\n", result.str().c_str());
        std::exit(result.success() ? 0 : 1);
    }
}

}  // namespace

int main(int argc, char** argv) {
    try {
        for (int i = 1; i < argc; ++i) {
            const std::string word = argv[i];
            const auto equals = std::min(word.find('='), word.size());
            perform(word.substr(0, equals), equals == word.size() ? "" : word.substr(equals + 1), argc, argv);
        }
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
