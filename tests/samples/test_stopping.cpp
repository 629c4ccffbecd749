// Runs that are stopped by signals: one process, several, under launchers, at a terminal. They end at one step, save it
// once, print how to resume, and a resumed run is bit-identical to an uninterrupted one.
#include <fmt/format.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/samples/run_program.h"

using namespace lockstep::test;

namespace {

using Words = std::vector<std::string>;

const std::string programs = PROGRAMS;

/// A training that takes hours, and saves so often that its progress is visible.
Words endless(const std::filesystem::path& net, const Words& how) {
    Words words{programs + "/linear", "--quiet", "--shards",   "4",      "--epochs",
                "100000000",          "--save",  net.string(), "--seed", "5",
                "--save-every",       "100"};
    words.insert(words.end(), how.begin(), how.end());
    return words;
}

const Words none{"--parallel", "none", "--devices", "cpu:0"}, dp{"--parallel", "dp", "--devices", "cpu:0,cpu:1"},
    ddp{"--parallel", "ddp", "--devices", "cpu:0,cpu:1"};

bool trains(const std::filesystem::path& net) {
    return comes_true([&] { return std::filesystem::exists(net.string() + ".resume"); });
}

/// Children of `parent`, except the process that guards its ranks.
std::vector<pid_t> children_of(pid_t parent) {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        const int process = std::atoi(entry.path().filename().c_str());
        if (process <= 0) continue;
        const std::string text = get_bytes(entry.path() / "stat");
        const auto name_end = text.rfind(')');
        if (name_end == std::string::npos || name_end + 4 > text.size()) continue;
        if (text.find("(lockstep-guard)") != std::string::npos) continue;
        if (std::atoi(text.c_str() + name_end + 4) == parent) found.push_back(process);
    }
    return found;
}

/// The number in the line "stopped by SIGINT after N steps; saved, resume with the same flags and --load NET", which
/// must occur once.
long reported_steps(const std::string& err, const char* signal, const std::filesystem::path& net) {
    const std::string begin = std::string("linear: stopped by ") + signal + " after ";
    const auto at = err.find(begin);
    CAPTURE(err);
    REQUIRE(at != std::string::npos);
    CHECK(err.find("stopped by", at + begin.size()) == std::string::npos);
    CHECK_THAT(err, contains(" steps; saved, resume with the same flags and --load " + net.string() + "\n"));
    return std::atol(err.c_str() + at + begin.size());
}

/// Checks that the run at `net` resumes from `steps` bit-identically to an uninterrupted one.
void check_resumes(const TemporaryDirectory& place, long steps) {
    const std::string common =
        fmt::format("linear --quiet --shards 4 --seed 5 --epochs 100000000 --steps {} ", steps + 40);
    CHECK(place.names().contains("net"));
    CHECK(run_program(place, common + "--devices cpu:0 --load net --save rest").status == 0);
    if (!std::filesystem::exists(place / "whole"))
        CHECK(run_program(place, common + "--devices cpu:0 --save whole").status == 0);
    CHECK((get_bytes(place / "rest") == get_bytes(place / "whole")));
    CHECK((get_bytes(place / "rest.resume") == get_bytes(place / "whole.resume")));
}

void check_no_litter(const TemporaryDirectory& place) {
    for (const std::string& name : place.names())
        CHECK((name.find(".tmp") == std::string::npos && name.find(".next") == std::string::npos &&
               name.find(".lock") == std::string::npos));
}

enum class To { program, one_rank, everybody };

void send(const StartedProcess& process, To whom, int signal) {
    const std::vector<pid_t> ranks = children_of(process.process());
    if (whom == To::one_rank) {
        REQUIRE(!ranks.empty());
        ::kill(ranks.back(), signal);
        return;
    }
    process.send(signal);
    if (whom == To::everybody)
        for (const pid_t rank : ranks) ::kill(rank, signal);
}

}  // namespace

TEST_CASE("a signal ends a run at one step, which is saved and resumed with the same bits") {
    struct Case {
        const char* name;
        Words how;
        int signal;
        To whom;
    };
    for (const auto& [name, how, signal, whom] :
         std::vector<Case>{{"none, SIGINT", none, SIGINT, To::program},
                           {"dp, SIGTERM", dp, SIGTERM, To::program},
                           {"ddp, SIGINT to the program", ddp, SIGINT, To::program},
                           {"ddp, SIGTERM to one rank", ddp, SIGTERM, To::one_rank},
                           {"ddp, SIGINT to the program and its ranks", ddp, SIGINT, To::everybody},
                           {"none, SIGUSR1", none, SIGUSR1, To::program},
                           {"dp, SIGXCPU", dp, SIGXCPU, To::program},
                           {"ddp, SIGUSR1 to the program", ddp, SIGUSR1, To::program},
                           {"ddp, SIGUSR2 to one rank", ddp, SIGUSR2, To::one_rank},
                           {"ddp, SIGUSR1 to the program and its ranks", ddp, SIGUSR1, To::everybody},
                           {"dp, SIGHUP", dp, SIGHUP, To::program},
                           {"ddp, SIGHUP to one rank", ddp, SIGHUP, To::one_rank},
                           {"ddp, SIGHUP to the program and its ranks", ddp, SIGHUP, To::everybody}}) {
        CAPTURE(name);
        const TemporaryDirectory place;
        Words words = endless(place / "net", how);
        if (signal == SIGHUP) words.insert(words.end(), {"--stop-signals", "SIGINT,HUP"});  // not a default
        StartedProcess run(words);
        REQUIRE(trains(place / "net"));
        send(run, whom, signal);
        CHECK(run.status() == 128 + signal);
        const std::string err = run.err();
        CHECK(std::count(err.begin(), err.end(), '\n') == 1);
        check_no_litter(place);
        check_resumes(place, reported_steps(err, ("SIG" + std::string(::sigabbrev_np(signal))).c_str(), place / "net"));
    }
}

TEST_CASE("with numbered checkpoints, a stopped run is saved separately as INTERRUPTED") {
    const TemporaryDirectory place;
    REQUIRE(run_program(place, "make-digits --data digits --train 96 --test 16 --seed 3").status == 0);
    const std::filesystem::path interrupted = place / "kept/INTERRUPTED.safetensors";
    std::filesystem::create_directory(place / "kept");
    for (const auto& [program, flags, how] :
         std::vector<std::array<std::string, 3>>{{"linear", "", "--parallel ddp --devices cpu:0,cpu:1"},
                                                 {"mnist", "--data digits --net small", "--devices cpu:0,cpu:1"}}) {
        CAPTURE(program);
        const std::string same = fmt::format("{} --quiet --shards 2 --seed 5 --epochs 100000000 {}", program, flags);
        StartedProcess run({"/bin/sh", "-c",
                            fmt::format("cd {} && exec {}/{} {} --log-dir log --save kept/{}{{epoch}} --save-every "
                                        "100000000e",
                                        shell_word(place.path()), shell_word(programs), same, how, program)});
        REQUIRE(comes_true([&] { return get_bytes(place / ("log/" + program + ".jsonl")).size() > 4000; }));
        run.send(SIGINT);
        CHECK(run.status() == 128 + SIGINT);
        CHECK_THAT(run.err(), contains("saved, resume with the same flags and --load kept/INTERRUPTED.safetensors\n"));
        const std::string err = run.err();
        const long steps = std::atol(err.c_str() + err.find(" after ") + 7) + 5;
        CHECK(std::distance(std::filesystem::directory_iterator(place / "kept"), {}) == 2);  // the checkpoint and its
                                                                                             // state
        const std::string end = fmt::format("{} --steps {} --devices cpu:0 ", same, steps);
        CHECK(run_program(place, end + "--load kept/INTERRUPTED.safetensors --save rest").status == 0);
        CHECK(run_program(place, end + "--save whole").status == 0);
        CHECK((get_bytes(place / "rest") == get_bytes(place / "whole")));
        CHECK((get_bytes(place / "rest.resume") == get_bytes(place / "whole.resume")));
    }
}

TEST_CASE("a shell sees that a signal ended the program") {
    const TemporaryDirectory place;
    StartedProcess run(endless(place / "net", none));
    REQUIRE(trains(place / "net"));
    int raw = 0;
    run.send(SIGINT);
    REQUIRE(::waitpid(run.process(), &raw, 0) == run.process());
    CHECK((WIFSIGNALED(raw) && WTERMSIG(raw) == SIGINT));
}

TEST_CASE("without --save the program says that nothing was saved") {
    const TemporaryDirectory place;
    StartedProcess run({programs + "/linear", "--quiet", "--devices", "cpu:0", "--epochs", "100000000", "--log-dir",
                        (place / "log").string()});
    REQUIRE(comes_true([&] { return get_bytes(place / "log/linear.jsonl").size() > 10'000; }));
    run.send(SIGTERM);
    CHECK(run.status() == 128 + SIGTERM);
    CHECK_THAT(run.err(), contains("stopped by SIGTERM after ") && contains("nothing was saved"));
    CHECK(place.names() == std::set<std::string>{"log"});
}

TEST_CASE("under lockstep-run a signal to it or to one rank stops all ranks, and the run is saved once") {
    for (const auto& [whom, signal] : std::vector<std::pair<To, int>>{
             {To::program, SIGTERM}, {To::one_rank, SIGTERM}, {To::program, SIGUSR1}, {To::one_rank, SIGUSR2}}) {
        const std::string name = "SIG" + std::string(::sigabbrev_np(signal));
        CAPTURE(name);
        const TemporaryDirectory place;
        Words words{programs + "/lockstep-run", "--nproc-per-node", "3"};
        for (const std::string& word : endless(place / "net", {"--parallel", "ddp"})) words.push_back(word);
        StartedProcess run(words);
        REQUIRE(trains(place / "net"));
        send(run, whom, signal);
        CHECK(run.status() == 1);
        if (whom == To::program || signal != SIGTERM)
            CHECK_THAT(run.err(),
                       contains(fmt::format("lockstep-run: ended by signal {} ({}) from outside\n", signal, name)));
        else
            CHECK_THAT(run.err(), contains(" failed first: exit status 143\n"));
        check_no_litter(place);
        // lockstep-run may quote the last lines of a rank.
        const std::string told = run.err().substr(0, run.err().find("lockstep-run:"));
        check_resumes(place, reported_steps(told, name.c_str(), place / "net"));
    }
}

TEST_CASE("a second signal ends the program at once") {
    const TemporaryDirectory place;
    StartedProcess run(endless(place / "net", ddp));
    REQUIRE(trains(place / "net"));
    const std::vector<pid_t> ranks = children_of(run.process());
    REQUIRE(ranks.size() == 2);
    ::kill(ranks[0], SIGSTOP);  // so that the other one cannot finish its step
    run.send(SIGINT);
    std::this_thread::sleep_for(std::chrono::milliseconds(1000));
    CHECK_FALSE(run.ended());
    // Repeated until it ends, because a second signal that is delivered together with the first counts as one.
    CHECK(comes_true([&] {
        run.send(SIGINT);
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
        return run.ended();
    }));
    CHECK(run.status() == 128 + SIGINT);
    CHECK_THAT(run.err(), contains("linear: ended by signal 2 (SIGINT) from outside\n"));
    CHECK(comes_true([&] { return std::none_of(ranks.begin(), ranks.end(), is_running); }));
    CHECK(run_program(place, "linear --quiet --shards 4 --seed 5 --epochs 0 --load net --save net").status == 0);
    check_no_litter(place);
}

TEST_CASE("Ctrl-C at a terminal saves, in one process and in several") {
    for (const Words& how : {dp, ddp}) {
        const TemporaryDirectory place;
        Words words = endless(place / "net", how);
        words.erase(words.begin() + 1);  // --quiet: with a bar
        std::vector<char*> pointers;
        for (const std::string& word : words) pointers.push_back(const_cast<char*>(word.c_str()));
        pointers.push_back(nullptr);
        int terminal = -1;
        const pid_t process = ::forkpty(&terminal, nullptr, nullptr, nullptr);
        REQUIRE(process >= 0);
        if (process == 0) {
            ::setenv("TERM", "xterm", 1);
            ::execv(pointers[0], pointers.data());
            ::_exit(127);
        }
        std::string shown;
        int raw = 0;
        bool pressed = false;
        const bool ended = comes_true([&] {
            std::array<char, 4096> bytes{};
            for (pollfd ready{terminal, POLLIN, 0}; ::poll(&ready, 1, 0) > 0 && (ready.revents & POLLIN) != 0;) {
                const ssize_t count = ::read(terminal, bytes.data(), bytes.size());
                if (count <= 0) break;
                shown.append(bytes.data(), static_cast<std::size_t>(count));
            }
            if (!pressed && std::filesystem::exists(place / "net.resume")) {
                pressed = true;
                if (::write(terminal, "\x03", 1) != 1) return true;
            }
            return ::waitpid(process, &raw, WNOHANG) == process;
        });
        ::close(terminal);
        if (!ended) ::kill(process, SIGKILL);
        REQUIRE(ended);
        CHECK((WIFSIGNALED(raw) && WTERMSIG(raw) == SIGINT));
        CHECK_THAT(shown, contains("linear: stopped by SIGINT after "));
        const std::string begin = "stopped by SIGINT after ";
        check_resumes(place, std::atol(shown.c_str() + shown.find(begin) + begin.size()));
    }
}

TEST_CASE("a run is saved as often as requested without changing its bits") {
    const TemporaryDirectory place;
    REQUIRE(run_program(place, "make-digits --data digits --train 404 --test 60 --seed 3").status == 0);
    const auto mnist = [&](const std::string& flags) {
        return run_program(place, "mnist --data digits --net small --shards 2 --epochs 3 " + flags);
    };
    const auto saved = [](const std::string& out) {
        int times = 0;
        for (auto at = out.find("saved "); at != std::string::npos; at = out.find("saved ", at + 1)) ++times;
        return times;
    };
    const ProgramRun once = mnist("--save once");  // 7 steps per epoch
    CHECK(saved(once.out) == 1);
    const ProgramRun steps = mnist("--save steps --save-every 4");
    CHECK(saved(steps.out) == 6);  // 4, 8, 12, 16, 20, 21
    const ProgramRun epochs = mnist("--save epochs --save-every 1e");
    CHECK(saved(epochs.out) == 3);
    const ProgramRun every_other = mnist("--save other --save-every 2e");
    CHECK(saved(every_other.out) == 2);
    const ProgramRun ddp_too = mnist("--parallel ddp --devices cpu:0,cpu:1 --save ddp --save-every 4");
    CHECK(ddp_too.status == 0);
    for (const char* name : {"steps", "epochs", "other", "ddp"}) {
        CAPTURE(name);
        CHECK((get_bytes(place / name) == get_bytes(place / "once")));
        CHECK((get_bytes(place / (std::string(name) + ".resume")) == get_bytes(place / "once.resume")));
    }
    // Counted over the whole run.
    REQUIRE(mnist("--steps 5 --save part").status == 0);
    CHECK(saved(mnist("--steps 13 --load part --save rest --save-every 6").out) == 3);  // 6, 12, 13
}

namespace {

/// The steps of a saved run, from the text of its state.
long steps_saved(const std::filesystem::path& net) {
    const std::string state = get_bytes(net.string() + ".resume"), begin = "\\\"steps\\\":";
    const auto at = state.find(begin);
    REQUIRE(at != std::string::npos);
    return std::atol(state.c_str() + at + begin.size());
}

/// Open MPI 5 or later.
bool passes_nothing_on(const std::string& mpirun) {
    StartedProcess asked({mpirun, "--version"});
    CHECK(asked.status() == 0);
    const std::string version = asked.out(), begin = "(Open MPI) ";
    const auto at = version.find(begin);
    return at != std::string::npos && std::atol(version.c_str() + at + begin.size()) >= 5;
}

}  // namespace

TEST_CASE("under mpirun a signal to it or to one rank stops all ranks, and the run is saved", "[.mpirun]") {
    const auto mpirun = found_launcher("LOCKSTEP_MPIRUN", "mpirun");
    if (!mpirun) return;
    for (const To whom : {To::one_rank, To::program}) {
        const TemporaryDirectory place;
        Words words{*mpirun, "--oversubscribe", "-n", "2", "--mca", "odls_base_sigkill_timeout", "5"};
        if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
        for (const std::string& word : endless(place / "net", {"--parallel", "ddp"})) words.push_back(word);
        StartedProcess run(words);
        REQUIRE(trains(place / "net"));
        send(run, whom, SIGTERM);
        CHECK(run.status() != 0);
        // mpirun prints messages as well. That of Open MPI 5 forwards nothing after it has received a signal.
        const std::string err = run.out() + run.err(), begin = "linear: stopped by SIGTERM after ";
        CAPTURE(err);
        const long steps = steps_saved(place / "net");
        const auto at = err.find(begin);
        if (at == std::string::npos && whom == To::program && passes_nothing_on(*mpirun)) {
            WARN("skipped: output of the ranks, which this mpirun does not forward");
        } else {
            REQUIRE(at != std::string::npos);
            CHECK(err.find(begin, at + 1) == std::string::npos);
            CHECK(std::atol(err.c_str() + at + begin.size()) == steps);
        }
        check_resumes(place, steps);
    }
}
