// Errors of programs, printed once and completely, and output on terminals.
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <memory>
#include <string>
#include <string_view>
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

/// A program whose standard output and error are a terminal.
class OnTerminal {
public:
    OnTerminal(const Words& command, Words environment) {
        REQUIRE(::openpty(&here_, &there_, nullptr, nullptr, nullptr) == 0);
        environment.emplace_back("TERM=xterm");
        process_ = std::make_unique<StartedProcess>(
            command, StartedProcess::Options{.environment = environment, .out = there_, .err = there_});
    }
    ~OnTerminal() {
        process_.reset();
        ::close(here_);
        ::close(there_);
    }
    OnTerminal(const OnTerminal&) = delete;
    OnTerminal& operator=(const OnTerminal&) = delete;

    void send(int signal) const { process_->send(signal); }
    bool ends_with(const std::string& text) {
        read();
        return shown_.ends_with(text);
    }
    /// All output until it ended.
    std::string to_the_end() {
        REQUIRE(comes_true([&] {
            read();
            return process_->ended();
        }));
        read();
        return shown_;
    }

private:
    void read() {
        std::array<char, 4096> bytes{};
        for (pollfd ready{here_, POLLIN, 0}; ::poll(&ready, 1, 0) > 0 && (ready.revents & POLLIN) != 0;) {
            const ssize_t count = ::read(here_, bytes.data(), bytes.size());
            if (count <= 0) return;
            shown_.append(bytes.data(), static_cast<std::size_t>(count));
        }
    }
    int here_ = -1, there_ = -1;
    std::unique_ptr<StartedProcess> process_;
    std::string shown_;
};

long lines_of(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

}  // namespace

TEST_CASE("the rank that could not write is named, not those that waited for it") {
    const TemporaryDirectory place;
    for (int i = 0; i < 3; ++i) {
        const ProgramRun run = run_program(place, "lockstep-run --nproc-per-node 4 " + shell_word(programs) +
                                                      "/linear --parallel ddp --epochs 1 --quiet --save /nowhere/file");
        CAPTURE(run.err);
        CHECK(run.status == 1);
        CHECK_THAT(run.err, contains("lockstep-run: rank 0 failed first: exit status 1"));
        CHECK_THAT(run.err, contains("last lines of rank 0 on stderr:\n  linear: cannot write /nowhere/file"));
    }
}

TEST_CASE("ranks of a program that started itself report an error once, and the program ends as they do") {
    const TemporaryDirectory place;
    const std::string linear = "linear --parallel ddp --devices cpu:0,cpu:1 --quiet ";
    REQUIRE(run_program(place, linear + "--steps 1 --save part").status == 0);
    const ProgramRun usage = run_program(place, linear + "--load part --seed 3");
    CHECK(usage.status == 2);
    CHECK(usage.err ==
          "linear: --seed 3: the run saved in part has 1; expected the same, or a change listed in --allow-changed\n");
    const ProgramRun failed = run_program(place, linear + "--load nowhere");
    CHECK(failed.status == 1);
    CHECK(lines_of(failed.err) == 1);
    const ProgramRun warned = run_program(place, linear + "--steps 1 --batch-size 1");
    CHECK(warned.status == 0);
    CHECK_THAT(warned.err, contains("1 rows for 2 shards"));
    CHECK(lines_of(warned.err) == 1);
}

TEST_CASE("a single warning says that each process trains by itself") {
    const TemporaryDirectory place;
    const std::string two = "lockstep-run --nproc-per-node 2 " + shell_word(programs) + "/linear --quiet --epochs 1 ";
    const ProgramRun alone = run_program(place, two);
    CHECK(alone.status == 0);
    CHECK(lines_of(alone.err) == 1);
    CHECK_THAT(alone.err, contains("2 processes train separate models; give --parallel ddp"));
    CHECK(run_program(place, two + "--parallel ddp").err.empty());
    CHECK(run_program(place, "linear --quiet --epochs 1").err.empty());
}

TEST_CASE("an error line is written in one piece") {
    std::array<int, 2> ends{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_DGRAM, 0, ends.data()) == 0);  // every write is a message
    StartedProcess run({programs + "/linear", "--nonsense"}, {.err = ends[1]});
    CHECK(run.status() == 2);
    std::array<char, 4096> bytes{};
    const ssize_t count = ::recv(ends[0], bytes.data(), bytes.size(), MSG_DONTWAIT);
    for (const int end : ends) ::close(end);
    REQUIRE(count > 0);
    const std::string line(bytes.data(), static_cast<std::size_t>(count));
    CHECK(line.rfind("linear: ", 0) == 0);
    CHECK(line.back() == '\n');
}

TEST_CASE("a terminal shows a progress bar, unless it is mpirun's") {
    const Words command{programs + "/linear", "--devices", "cpu:0", "--epochs", "1"};
    CHECK_THAT(OnTerminal(command, {}).to_the_end(), contains("\033["));
    const Words of_mpirun{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0",
                          "OMPI_COMM_WORLD_LOCAL_SIZE=1"};
    const std::string plain = OnTerminal(command, of_mpirun).to_the_end();
    CHECK(plain.find('\033') == std::string::npos);
    CHECK_THAT(plain, contains("after 1 epochs: ") || contains("epoch 1: "));
}

TEST_CASE("after a bar that a signal interrupts, the last message begins a line") {
    std::signal(SIGHUP, SIG_DFL);  // nohup would start the program with the signal ignored
    OnTerminal run({programs + "/linear", "--parallel", "ddp", "--devices", "cpu:0,cpu:1", "--epochs", "1000000",
                    "--batch-size", "2"},  // one line per epoch replaces the bar
                   {});
    REQUIRE(comes_true([&] { return run.ends_with(" left"); }));
    run.send(SIGHUP);
    CHECK_THAT(run.to_the_end(), contains("\r\nlinear: ended by signal 1 (SIGHUP) from outside\r\n"));
}

TEST_CASE("closed standard streams are not used for a program's files") {
    for (const char* closed : {"<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- 2>&-", "<&- >&- 2>&-"})
        for (const char* how : {"--devices cpu:0", "--parallel ddp --devices cpu:0,cpu:1"}) {
            const TemporaryDirectory place;
            CAPTURE(closed);
            CAPTURE(how);
            const std::string command = "cd " + shell_word(place.path()) + " && " + shell_word(programs) + "/linear " +
                                        how + " --shards 2 --steps 3 --save net --log-dir log --json figures " + closed;
            CHECK(std::system(command.c_str()) == 0);
            for (const char* file : {"net", "net.resume", "log/linear.jsonl", "figures"})
                CHECK(std::filesystem::exists(place / file));
            CHECK(get_bytes(place / "log/linear.jsonl").find("rows per step") == std::string::npos);
            CHECK(lines_of(get_bytes(place / "log/linear.jsonl")) == 4);
            const std::string lock = get_bytes(place / "net.lock");
            CHECK(lock.find("linear:") == std::string::npos);
            CHECK(run_program(place, std::string("linear --shards 2 --steps 5 --quiet --load net ") + how).status == 0);
        }
    const TemporaryDirectory place;
    for (const char* line :
         {"lockstep-run --nproc-per-node 1 true", "make-digits --data digits --train 4 --test 4", "lockstep-info"})
        CHECK(std::system(
                  ("cd " + shell_word(place.path()) + " && " + shell_word(programs) + "/" + line + " <&- >&- 2>&-")
                      .c_str()) == 0);
    // Ranks that print: their output must not be a socket or file of the process group.
    for (const char* closed : {">&-", "<&- >&- 2>&-"})
        CHECK(std::system(("cd " + shell_word(place.path()) + " && " + shell_word(programs) +
                           "/collectives --processes 2 " + closed)
                              .c_str()) == 0);
}

TEST_CASE("unwritable output does not end training") {
    const std::string train = "linear --devices cpu:0 --batch-size 512 --epochs 3 --log-interval 1 --save net";
    {
        const TemporaryDirectory place;
        const std::string command =
            "cd " + shell_word(place.path()) + " && " + shell_word(programs) + "/" + train + " >/dev/full 2>err";
        const int status = std::system(command.c_str());
        CHECK(WEXITSTATUS(status) == 1);  // the output is lost, but not the run
        CHECK(std::filesystem::exists(place / "net.resume"));
        const std::string err = get_bytes(place / "err");
        CAPTURE(err);
        CHECK(lines_of(err) == 2);
        CHECK_THAT(err, contains("cannot write to standard output: No space left on device; training continues") &&
                            contains("linear: cannot write to standard output\n"));
    }
    const TemporaryDirectory place;
    const std::string command =
        "bash -c " + shell_word("cd " + shell_word(place.path()) + " && " + shell_word(programs) + "/" + train +
                                " 2>err | head -1 >out; exit ${PIPESTATUS[0]}");
    const int status = std::system(command.c_str());
    CHECK(WEXITSTATUS(status) == 0);  // the reader has closed the pipe
    CHECK(std::filesystem::exists(place / "net.resume"));
    CHECK(lines_of(get_bytes(place / "out")) == 1);
    const std::string err = get_bytes(place / "err");
    CAPTURE(err);
    CHECK((err.empty() || lines_of(err) == 1));
}

TEST_CASE("several processes train to the end with the same result, whatever happens to their output") {
    const TemporaryDirectory place;
    const std::string flags = " --shards 2 --batch-size 512 --epochs 3 --log-interval 1 --save ";
    REQUIRE(run_program(place, "linear --devices cpu:0 --quiet" + flags + "whole").status == 0);
    const auto check = [&](int status, int expected) {
        CHECK(status == expected);
        const std::string err = get_bytes(place / "err");
        CAPTURE(err);
        CHECK_THAT(err, !contains("signal"));
        if (expected == 0) CHECK_THAT(err, !contains("failed first"));
        for (const std::string suffix : {"", ".resume"}) {
            CHECK((get_bytes(place / ("net" + suffix)) == get_bytes(place / ("whole" + suffix))));
            std::filesystem::remove(place / ("net" + suffix));
        }
    };
    const std::string linear = shell_word(programs + "/linear") + " --parallel ddp";
    for (const std::string& start :
         {linear + " --devices cpu:0,cpu:1", shell_word(programs + "/lockstep-run") + " --nproc-per-node 2 " + linear,
          shell_word(programs + "/lockstep-run") + " --nproc-per-node 2 --tee 3 --log-dir logs " + linear}) {
        CAPTURE(start);
        const std::string line = "cd " + shell_word(place.path()) + " && " + start + flags + "net 2>err ";
        // A reader of one line, no output, and a full disk, which is reported at the end.
        for (const auto& [output, expected] :
             {std::pair("| head -1 >out; exit ${PIPESTATUS[0]}", 0), {">&-", 0}, {">/dev/full", 1}}) {
            CAPTURE(output);
            StartedProcess run({"bash", "-c", line + output});
            check(run.status(), expected);
            if (std::string_view(output).starts_with("|")) CHECK(lines_of(get_bytes(place / "out")) == 1);
        }
        // A pipe that its reader has closed before the first line.
        std::array<int, 2> ends{};
        REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
        ::close(ends[0]);
        StartedProcess run({"bash", "-c", line}, {.out = ends[1]});
        ::close(ends[1]);
        check(run.status(), 0);
    }
}
