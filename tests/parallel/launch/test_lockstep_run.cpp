// lockstep-run from a user's view: flags, places, failures, restarts, signals.
#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/shell.h"
#include "lockstep/tests/parallel/launch/lockstep_run.h"

using namespace lockstep::test;

namespace {

std::vector<int> own_cores() {
    cpu_set_t set;
    std::vector<int> cores;
    REQUIRE(sched_getaffinity(0, sizeof set, &set) == 0);
    for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &set)) cores.push_back(core);
    return cores;
}

std::string text_of(const std::vector<int>& cores, std::size_t begin, std::size_t end) {
    std::string text;
    for (std::size_t i = begin; i < end; ++i) text += (text.empty() ? "" : ",") + std::to_string(cores[i]);
    return text;
}

/// All cores of the NUMA nodes that some of them belong to.
std::string text_of_nodes(const std::vector<int>& cores, std::size_t begin, std::size_t end) {
    const auto are_together = [](int a, int b) {
        for (int node = 0; node < 256; ++node) {
            const auto has = [node](int core) {
                return std::filesystem::exists("/sys/devices/system/node/node" + std::to_string(node) + "/cpu" +
                                               std::to_string(core));
            };
            if (has(a) != has(b)) return false;
        }
        return true;
    };
    std::vector<int> near;
    for (const int core : cores)
        if (std::any_of(&cores[begin], &cores[begin] + (end - begin), [&](int own) { return are_together(own, core); }))
            near.push_back(core);
    return text_of(near, 0, near.size());
}

/// Checks status and stderr of a run that must end at once.
void check_refused(const Words& words, const std::string& complaint, const Words& environment = {}, int status = 2) {
    StartedProcess run(words, {.environment = environment});
    CAPTURE(words, complaint);
    CHECK(run.status() == status);
    CHECK(run.out().empty());
    const std::string err = run.err();
    CHECK_THAT(err, contains(complaint));
    CHECK(err.rfind("lockstep-run: ", 0) == 0);
    CHECK(std::count(err.begin(), err.end(), '\n') == 1);
}

}  // namespace

TEST_CASE("help names all flags") {
    StartedProcess help({LOCKSTEP_RUN, "--help"});
    CHECK(help.status() == 0);
    for (const char* flag : {"--nproc-per-node N|auto|cpu|gpu", "--nnodes N", "--node-rank", "--master-addr",
                             "--master-port", "--standalone", "--max-restarts", "--log-dir", "-t, --tee",
                             "-r, --redirects", "--signals", "--prefix", "--no-binding", "--grace",
                             "LOCKSTEP_STORE_TOKEN", "PROGRAM [ARGS...]", "hyphens in flags are interchangeable"})
        CHECK_THAT(help.out(), contains(flag));
}

TEST_CASE("wrong usage is one line and status 2, and nothing is started") {
    const auto refused = [](const Words& flags, const std::string& complaint) {
        check_refused(command(flags, {"out=started"}), complaint);
    };
    check_refused({LOCKSTEP_RUN}, "no program; expected PROGRAM");
    check_refused({LOCKSTEP_RUN, "--nproc-per-node", "2", "--"}, "no program; expected PROGRAM");
    refused({"--nonsense"}, "unknown flag --nonsense");
    refused({"--nproc-per-node", "2", "--rdzv-backend", "c10d"}, "unknown flag --rdzv-backend");
    for (const char* count : {"0", "-1", "1025", "two", "2x"})
        refused({"--nproc-per-node", count}, "expected 1 to 1024, auto, cpu or gpu");
    refused({"--nproc-per-node", ""}, "--nproc-per-node: value is empty");
    refused({"--nnodes", "0"}, "0 hosts");
    refused({"--nnodes", "2000000"}, "2000000 hosts");
    refused({"--nnodes", "2", "--node-rank", "0"}, "master port");
    refused({"--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", "2000"}, "node rank");
    refused({"--nnodes", "2", "--node-rank", "2"}, "node rank 2 of 2");
    refused({"--node-rank", "1"}, "node rank 1 of 1");
    refused({"--nnodes", "2", "--node-rank", "0", "--master-addr", "10.1.2.3", "--master-port", "2000"},
            "LOCKSTEP_STORE_TOKEN");
    refused({"--nnodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", "2000",
             "--max-restarts", "1"},
            "cannot be restarted");
    refused({"--standalone", "--nnodes", "2"}, "--standalone");
    refused({"--standalone", "--master-port", "2000"}, "--standalone");
    refused({"--master-port", "70000"}, "70000");
    refused({"--max-restarts", "-1"}, "-1 restarts");
    for (const char* grace : {"-1", "nan", "inf", "86401", "x"}) refused({"--grace", grace}, grace);
    for (const char* flag : {"--max-restarts", "--nnodes", "--node-rank"})
        refused({flag, "0x1"}, std::string(flag) + ": value is 0x1; expected a whole number");
    refused({"--nnodes", "1:2"}, "elastic range 1:2 is not supported; expected one number");
    refused({"--master-addr", "a b"}, "expected a host name or an IP address");
    refused({"--nproc-per-node", "2", "--log-dir", "/tmp", "--tee", "0:1,0:2"}, "duplicate local rank 0 in 0:1,0:2");
    refused({"--signals", "SIGNONE"}, "SIGNONE");
    refused({"--signals", "KILL"}, "signal 9 (SIGKILL) cannot be forwarded");
    refused({"--tee", "3"}, "expected a log directory");
    refused({"--log-dir", "/tmp", "--tee", "0"}, "no stream");
    for (const char* streams : {"4", "both", "0:4", "9:1", "0:", ":1", "0:1,2"})
        refused({"--nproc-per-node", "2", "--log-dir", "/tmp", "--tee", streams}, "--tee");
    check_refused(command({"--nproc-per-node", "gpu"}, {"out=started"}), "cpu", {"CUDA_VISIBLE_DEVICES=-1"});
}

TEST_CASE("a log that cannot be written is a failed run and not wrong usage, as in all programs") {
    const TemporaryDirectory directory;
    put_bytes(directory / "file", "");
    std::filesystem::create_directories(directory / "logs" / "attempt_0" / "0" / "stderr.log");
    const auto refused = [&](const std::string& logs, const std::string& complaint) {
        check_refused(command({"--nproc-per-node", "2", "--log-dir", logs}, {"out=started"}), complaint, {}, 1);
    };
    refused("/proc/nothing", "/proc/nothing/attempt_0/0/stdout.log cannot be written: No such file or directory");
    refused((directory / "file").string(), "file/attempt_0/0/stdout.log cannot be written: Not a directory");
    refused((directory / "logs").string(), "logs/attempt_0/0/stderr.log cannot be written: Is a directory");
}

TEST_CASE("a command that cannot be executed is rejected before anything is started") {
    const TemporaryDirectory directory;
    put_bytes(directory / "data", "no program");
    put_bytes(directory / "garbage", "no program either");
    put_bytes(directory / "script", "#!/nowhere/shell\n");
    for (const char* name : {"garbage", "script"}) REQUIRE(::chmod((directory / name).c_str(), 0700) == 0);
    const auto file = [&](const std::string& name) { return (directory / name).string(); };
    check_refused({LOCKSTEP_RUN, file("missing")}, "No such file");
    check_refused({LOCKSTEP_RUN, "no-such-program-anywhere"}, "not found in PATH");
    check_refused({LOCKSTEP_RUN, file("data")}, "Permission denied");
    check_refused({LOCKSTEP_RUN, directory.path().string()}, "directory");
    check_refused({LOCKSTEP_RUN, file("garbage")}, "Exec format error");
    check_refused({LOCKSTEP_RUN, file("script")}, "#!");
    // Found in PATH, with its own flags that lockstep-run has as well, after a "--".
    StartedProcess found({LOCKSTEP_RUN, "--nproc_per_node=2", "--", "printf", "%s ", "--help", "--tee"});
    CHECK(found.status() == 0);
    CHECK(found.out() == "--help --tee --help --tee ");
}

TEST_CASE("each rank gets its rank numbers and the number of usable cores near its memory") {
    const auto cores = own_cores();
    const int ranks = GENERATE(1, 2, 3);
    StartedProcess run(command({"--nproc_per_node", std::to_string(ranks)}, {"env", "input"}),
                       {.environment = {"TORCHELASTIC_RUN_ID=other", "RANK=17", "WORLD_SIZE=18"}});
    REQUIRE(run.status() == 0);
    CHECK(run.err().empty());
    std::set<std::string> ports;
    const auto lines = run.lines();
    REQUIRE(std::ssize(lines) == 2 * ranks);
    for (int rank = 0; rank < ranks; ++rank) {
        const std::string& line = lines[static_cast<std::size_t>(2 * rank)];
        const std::string number = std::to_string(rank), world = std::to_string(ranks);
        CHECK(line.rfind(number + " env ", 0) == 0);
        const std::size_t run_length = cores.size() / static_cast<std::size_t>(ranks);
        const std::size_t begin =
            run_length ? static_cast<std::size_t>(rank) * run_length : static_cast<std::size_t>(rank) % cores.size();
        const std::map<std::string, std::string> expected{
            {"LOCAL_RANK", number},
            {"WORLD_SIZE", world},
            {"LOCAL_WORLD_SIZE", world},
            {"GROUP_RANK", "0"},
            {"MASTER_ADDR", "127.0.0.1"},
            {"TORCHELASTIC_RESTART_COUNT", "0"},
            {"TORCHELASTIC_MAX_RESTARTS", "0"},
            {"TORCHELASTIC_RUN_ID", "-"},
            {"OMP_NUM_THREADS", std::to_string(std::max<std::size_t>(run_length, 1))},
            {"OMP_THREAD_LIMIT", std::to_string(std::max<std::size_t>(run_length, 1))},
            {"cores", text_of_nodes(cores, begin, begin + std::max<std::size_t>(run_length, 1))}};
        for (const auto& [name, value] : expected) {
            CAPTURE(line, name);
            CHECK(value_in(line, name) == value);
        }
        ports.insert(value_in(line, "MASTER_PORT"));
        CHECK(lines[static_cast<std::size_t>(2 * rank + 1)] == number + " read 0 bytes");
    }
    CHECK(ports.size() == 1);
    CHECK(std::stoi(*ports.begin()) > 0);
}

TEST_CASE("variables set by the user are kept") {
    StartedProcess run(
        command({"--nproc-per-node=2", "--no_binding", "--master-port", "2345", "--master_addr", "localhost"}, {"env"}),
        {.environment = {"OMP_NUM_THREADS=7", "LOCKSTEP_CPU_DEVICES=3", "LOCKSTEP_STORE_TOKEN=secret"}});
    REQUIRE(run.status() == 0);
    const auto cores = own_cores();
    for (const std::string& line : run.lines()) {
        CHECK(value_in(line, "OMP_NUM_THREADS") == "7");
        CHECK(value_in(line, "OMP_THREAD_LIMIT") == "-");
        CHECK(value_in(line, "LOCKSTEP_CPU_DEVICES") == "3");
        CHECK(value_in(line, "LOCKSTEP_STORE_TOKEN") == "secret");
        CHECK(value_in(line, "MASTER_PORT") == "2345");
        CHECK(value_in(line, "MASTER_ADDR") == "localhost");
        CHECK(value_in(line, "cores") == text_of(cores, 0, cores.size()));
    }
    StartedProcess limited(command({"--nproc-per-node=1"}, {"env"}), {.environment = {"OMP_THREAD_LIMIT=1"}});
    REQUIRE(limited.status() == 0);
    CHECK(value_in(limited.out(), "OMP_THREAD_LIMIT") == "1");
    StartedProcess few(command({"--nproc-per-node=1"}, {"env"}), {.environment = {"CUDA_VISIBLE_DEVICES=1"}});
    REQUIRE(few.status() == 0);
    CHECK(value_in(few.out(), "LOCKSTEP_CPU_DEVICES") == "-");  // cpu:1 would not exist with one device
}

TEST_CASE("ranks of one machine share a secret that changes with every attempt") {
    std::set<std::string> secrets;
    for (int run_number = 0; run_number < 2; ++run_number) {
        StartedProcess run(command({"--nproc-per-node=2", "--max-restarts=1"}, {"env", "until=1", "only=0", "exit=3"}));
        CHECK(run.status() == 0);
        REQUIRE(run.lines().size() == 4);
        std::multiset<std::string> of_this;
        for (const std::string& line : run.lines()) of_this.insert(value_in(line, "LOCKSTEP_STORE_TOKEN"));
        for (const std::string& secret : of_this) {
            CHECK(secret.size() == 32);
            CHECK(of_this.count(secret) == 2);
        }
        secrets.insert(of_this.begin(), of_this.end());
    }
    CHECK(secrets.size() == 4);
    // Launchers on several machines do not know each other.
    StartedProcess node(
        command({"--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port=2345", "--nproc-per-node=1"},
                {"env"}));
    CHECK(node.status() == 0);
    CHECK(value_in(node.out(), "LOCKSTEP_STORE_TOKEN") == "-");
}

TEST_CASE("the default is one rank per device or core") {
    const auto ranks_of = [](const char* count, const Words& environment) {
        StartedProcess run(command({"--nproc-per-node", count}, {"env"}), {.environment = environment});
        CHECK(run.status() == 0);
        return run.lines().size();
    };
    CHECK(ranks_of("cpu", {}) == own_cores().size());
    StartedProcess gpus(command({"--nproc-per-node", "gpu"}, {"env"}));
    if (gpus.status() == 0) {
        CHECK(ranks_of("auto", {}) == gpus.lines().size());
    } else {
        CHECK(ranks_of("auto", {"LOCKSTEP_CPU_DEVICES=3"}) == 3);
        CHECK(ranks_of("auto", {}) == 2);
    }
}

TEST_CASE("ranks find each other through their environment") {
    StartedProcess run(command({"--standalone", "--nnodes=1", "--nproc-per-node=4"}, {"join"}));
    CHECK(run.status() == 0);
    CHECK(run.lines() == Words{"joined 0/4 launcher 1 sum 14", "joined 1/4 launcher 1 sum 14",
                               "joined 2/4 launcher 1 sum 14", "joined 3/4 launcher 1 sum 14"});
}

TEST_CASE("ranks of two nodes find each other") {
    const int port = lockstep::TcpStoreServer{lockstep::TcpStoreOptions{}}.port();
    const auto node = [&](const char* number) {
        return command({"--nnodes=2", "--node-rank", number, "--master-addr=127.0.0.1", "--master-port",
                        std::to_string(port), "--nproc-per-node=2"},
                       {"env", "join"});
    };
    StartedProcess second(node("1")), first(node("0"));
    CHECK(first.status() == 0);
    CHECK(second.status() == 0);
    CHECK(has_line(first, "joined 1/4 launcher 1 sum 14"));
    CHECK(has_line(second, "joined 2/4 launcher 1 sum 14"));
    CHECK(has_line(second, "joined 3/4 launcher 1 sum 14"));
    CHECK(value_in(second.lines().front(), "GROUP_RANK") == "1");
    CHECK(value_in(second.lines().front(), "LOCAL_RANK") == "0");
}

TEST_CASE("the first failed rank is named, with its status and last output, and the others end") {
    const TemporaryDirectory directory;
    const std::string pid = "pid=" + directory.path().string();
    {
        StartedProcess run(
            command({"--nproc-per-node=3", "--grace=0.2"}, {pid, "only=1", "err=no luck\nat all\n", "exit=7"}));
        CHECK(run.status() == 1);
        CHECK_THAT(run.err(), contains("last lines of rank 1 on stderr:\n  no luck\n  at all\n"
                                       "lockstep-run: rank 1 failed first: exit status 7\n"));
    }
    {
        StartedProcess run(command({"--nproc-per-node=3", "--grace=0.2"}, {pid, "deaf=15", "only=2", "kill=9"}));
        CHECK(run.status() == 1);
        CHECK(run.err() == "lockstep-run: rank 2 failed first: killed by signal 9 (SIGKILL)\n");
    }
    CHECK(none_runs(processes_in(directory, 3)));
}

TEST_CASE("ranks that fail because of another rank may print it and are not blamed") {
    // The others wait until rank 1 has ended: it is a zombie as long as the launcher runs.
    const TemporaryDirectory directory;
    StartedProcess run(
        {LOCKSTEP_RUN, "--nproc-per-node=3", "sh", "-c",
         "[ $RANK = 1 ] && { echo $$ >\"$0/new\"; mv \"$0/new\" \"$0/pid\"; exit 5; }\n"
         "until [ -e \"$0/pid\" ] && grep -q ') Z' \"/proc/$(cat \"$0/pid\")/stat\"; do sleep 0.01; done\n"
         "sleep 0.4; echo rank $RANK misses it; exit 6",
         directory.path().string()});
    CHECK(run.status() == 1);
    CHECK(run.lines() == Words{"rank 0 misses it", "rank 2 misses it"});
    CHECK_THAT(run.err(), contains("rank 1 failed first: exit status 5"));
}

TEST_CASE("a rank that succeeds does not affect the others") {
    StartedProcess run(command({"--nproc-per-node=2"}, {"skip=0", "sleep=300", "out=late"}));
    CHECK(run.status() == 0);
    CHECK(run.out() == "late");
}

TEST_CASE("after a failure all ranks are restarted up to the limit, each time with another port") {
    StartedProcess recovers(command({"--nproc-per-node=2", "--max_restarts=3", "--grace=0.2"},
                                    {"env", "join", "until=2", "only=1", "err=again\n", "exit=3"}));
    CHECK(recovers.status() == 0);
    std::map<std::string, std::set<std::string>> ports;
    for (const std::string& line : recovers.lines())
        if (line.find(" env ") != std::string::npos)
            ports[value_in(line, "TORCHELASTIC_RESTART_COUNT")].insert(value_in(line, "MASTER_PORT"));
    REQUIRE(ports.size() == 3);
    for (const auto& [attempt, used] : ports) CHECK(used.size() == 1);
    CHECK_THAT(recovers.err(), contains("rank 1 failed first: exit status 3; restarting all ranks, restart 2 of 3"));

    StartedProcess fails(command({"--nproc-per-node=2", "--max-restarts=2", "--grace=0.2"}, {"only=0", "kill=12"}));
    CHECK(fails.status() == 1);
    CHECK_THAT(fails.err(), contains("lockstep-run: rank 0 failed first: killed by signal 12 (SIGUSR2); the limit of 2 "
                                     "restarts is reached\n"));
}

TEST_CASE("signals are sent to all ranks and end the run") {
    const int signal = GENERATE(SIGINT, SIGTERM, SIGHUP, SIGQUIT);
    const std::string number = std::to_string(signal);
    const TemporaryDirectory directory;
    StartedProcess run(
        command({"--nproc-per-node=2"}, {"trap=" + number, "pid=" + directory.path().string(), "sleep=600000"}));
    const auto ranks = processes_in(directory, 2);
    run.send(signal);
    CHECK(run.status() == 1);
    const std::string got = std::string(" got signal ") + (signal < 10 ? "0" : "") + number;
    CHECK(run.lines() == Words{"0" + got, "1" + got});
    CHECK_THAT(run.err(), contains("lockstep-run: ended by signal " + number));
    CHECK(none_runs(ranks));
}

TEST_CASE("ranks that ignore a signal are killed after the grace period, or at once on a second signal") {
    const bool again = GENERATE(false, true);
    const TemporaryDirectory directory;
    StartedProcess run(command({"--nproc-per-node=2", again ? "--grace=300" : "--grace=0.3", "--max-restarts=5"},
                               {"deaf=2", "deaf=15", "pid=" + directory.path().string(), "sleep=600000"}));
    const auto ranks = processes_in(directory, 2);
    run.send(SIGINT);
    // Repeated until it ends, because a second signal that is delivered together with the first counts as one.
    if (again)
        CHECK(comes_true([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(400));
            run.send(SIGINT);
            return run.ended();
        }));
    CHECK(run.status() == 1);
    CHECK_THAT(run.err(), contains("ended by signal 2 (SIGINT)"));
    CHECK(none_runs(ranks));
}

TEST_CASE("other signals are forwarded, and the run continues") {
    const TemporaryDirectory directory, other;
    const std::string go = (other / "go").string();
    StartedProcess run(command({"--nproc-per-node=2", "--signals=USR1,SIGTERM"},
                               {"count=10", "pid=" + directory.path().string(), "after=" + go, "out=done\n"}));
    processes_in(directory, 2);
    run.send(SIGUSR1);
    CHECK(comes_true([&] { return run.lines().size() == 2; }));
    put_bytes(go, "");
    CHECK(run.status() == 0);
    CHECK(run.lines() == Words{"0 got signal 10", "1 got signal 10", "done", "done"});
}

TEST_CASE("no rank outlives lockstep-run, however it ends") {
    const TemporaryDirectory directory;
    StartedProcess run(command({"--nproc-per-node=3"}, {"pid=" + directory.path().string(), "sleep=600000"}));
    const auto ranks = processes_in(directory, 3);
    run.send(SIGKILL);
    CHECK(run.status() == 128 + SIGKILL);
    CHECK(none_runs(ranks));
}

TEST_CASE("no process that a rank's shell started outlives lockstep-run, whatever is killed with it") {
    const bool group_too = GENERATE(false, true);
    const TemporaryDirectory directory;
    const std::string worker =
        shell_word(LAUNCH_WORKER) + " pid=" + shell_word(directory.path()) + " child=" + shell_word(directory.path());
    StartedProcess run({LOCKSTEP_RUN, "--nproc-per-node=2", "sh", "-c", worker + " sleep=600000; true"});
    const auto all = processes_in(directory, 4);
    ::kill(group_too ? -run.process() : run.process(), SIGKILL);
    CHECK(run.status() == 128 + SIGKILL);
    CHECK(none_runs(all));
}

TEST_CASE("lockstep-run leaves no rank if it is killed while it starts them") {
    const TemporaryDirectory mark;  // its name is in the command lines of all of them
    const auto marked = [&] {
        std::vector<pid_t> found;
        for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
            const int process = std::atoi(entry.path().filename().c_str());
            if (process <= 0) continue;
            std::string command;  // stays empty if the process ends in between
            std::getline(std::ifstream(entry.path() / "cmdline"), command, '\n');
            if (command.find(mark.path().string()) != std::string::npos) found.push_back(process);
        }
        return found;
    };
    bool some = false;
    for (int trial = 0; trial < 30 || (!some && trial < 300); ++trial) {
        StartedProcess run(command({"--nproc-per-node=4"}, {"sleep=600000", mark.path().string()}));
        std::this_thread::sleep_for(std::chrono::milliseconds(2 * trial));
        some = some || marked().size() > 1;
        run.send(SIGKILL);
        CHECK(run.status() == 128 + SIGKILL);
        CHECK(none_runs(marked()));
    }
    CHECK(some);
}

TEST_CASE("processes that ranks started end with them") {
    const bool fails = GENERATE(false, true);
    const TemporaryDirectory directory;
    const std::string where = directory.path().string();
    StartedProcess run(
        command({"--nproc-per-node=2", "--grace=0.2"},
                {"pid=" + where, "child=" + where, fails ? "only=1" : "sleep=1", fails ? "exit=1" : "exit=0"}));
    CHECK(run.status() == (fails ? 1 : 0));
    const auto all = processes_in(directory, 4);
    CHECK(all.size() == 4);
    CHECK(none_runs(all));
}
