// lockstep-run: destinations of the ranks' output.
#include <fcntl.h>
#include <poll.h>

#include <array>

#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/shell.h"
#include "lockstep/tests/parallel/launch/lockstep_run.h"

using namespace lockstep::test;

namespace {

Words sorted_lines(const std::string& text) {
    Words lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    std::sort(lines.begin(), lines.end());
    return lines;
}

}  // namespace

TEST_CASE("without flags the output is that of the ranks") {
    StartedProcess run(command({"--nproc-per-node=2"}, {"skip=1", "out=a bar\r", "err=part", "err= of a line"}));
    CHECK(run.status() == 0);
    CHECK(run.out() == "a bar\r");
    CHECK(run.err() == "part of a line");
}

TEST_CASE("with a prefix every line names its rank") {
    StartedProcess run(command({"--nproc-per-node=3", "--prefix"},
                               {"out=one\n\ntw", "err=to", "sleep=50", "out=o\nno end", "err= stderr\n"}));
    CHECK(run.status() == 0);
    Words expected, errors;
    for (const char* rank : {"[0]:", "[1]:", "[2]:"}) {
        for (const char* line : {"", "no end", "one", "two"}) expected.push_back(std::string(rank) + line);
        errors.push_back(std::string(rank) + "to stderr");
    }
    CHECK(run.lines() == expected);
    CHECK(sorted_lines(run.err()) == errors);
}

TEST_CASE("lines of several ranks never mix, however many ranks there are") {
    StartedProcess run({LOCKSTEP_RUN, "--nproc-per-node=4", "--prefix", "sh", "-c",
                        "i=0; while [ $i -lt 2000 ]; do echo \"$RANK counts $i and continues\"; i=$((i+1)); done"});
    CHECK(run.status() == 0);
    std::array<int, 4> next{};
    std::istringstream text(run.out());
    for (std::string line; std::getline(text, line);) {
        REQUIRE(line.size() > 4);
        const int rank = line[1] - '0';
        REQUIRE((rank >= 0 && rank < 4));
        const std::string number = std::to_string(rank);
        CHECK(line == "[" + number + "]:" + number + " counts " +
                          std::to_string(next[static_cast<std::size_t>(rank)]++) + " and continues");
    }
    CHECK(next == std::array<int, 4>{2000, 2000, 2000, 2000});
}

TEST_CASE("one log per attempt and rank") {
    const TemporaryDirectory directory;
    const auto log = [&](const std::string& name) { return get_bytes(directory / ("logs/" + name)); };
    const std::string flag = "--log-dir=" + (directory / "logs").string();
    const auto there = [&](const std::string& name) { return std::filesystem::exists(directory / ("logs/" + name)); };

    SECTION("redirected streams are written to files only") {
        StartedProcess run(command({"--nproc-per-node=2", flag, "-r", "3", "--max-restarts=1", "--grace=0.2"},
                                   {"out=said\n", "err=erred\n", "until=1", "only=1", "exit=4"}));
        CHECK(run.status() == 0);
        CHECK(run.out().empty());
        CHECK(run.err() ==
              "lockstep-run: last lines of rank 1 on stderr:\n  erred\nlockstep-run: rank 1 failed first: "
              "exit status 4; restarting all ranks, restart 1 of 1\n");
        for (const char* place : {"attempt_0/0", "attempt_0/1", "attempt_1/0", "attempt_1/1"}) {
            CHECK(log(std::string(place) + "/stdout.log") == "said\n");
            CHECK(log(std::string(place) + "/stderr.log") == "erred\n");
        }
    }
    SECTION("tee also writes them to the console") {
        StartedProcess run(command({"--nproc-per-node=2", flag, "--tee", "1"}, {"out=said", "err=erred\n"}));
        CHECK(run.status() == 0);
        CHECK(run.lines() == Words{"[0]:said", "[1]:said"});
        CHECK(run.err() == "erred\nerred\n");
        CHECK(log("attempt_0/1/stdout.log") == "said");
        CHECK_FALSE(there("attempt_0/1/stderr.log"));
    }
    SECTION("a choice per local rank, where tee wins if both flags name a stream") {
        StartedProcess run(
            command({"--nproc-per-node=3", flag, "--tee=0:3,1:2", "--redirects=1:3"}, {"out=said\n", "err=erred\n"}));
        CHECK(run.status() == 0);
        CHECK(run.lines() == Words{"[0]:said", "said"});
        CHECK(sorted_lines(run.err()) == Words{"[0]:erred", "[1]:erred", "erred"});
        for (const char* file : {"0/stdout.log", "0/stderr.log", "1/stdout.log", "1/stderr.log"})
            CHECK(there("attempt_0/" + std::string(file)));
        CHECK_FALSE(there("attempt_0/2"));
    }
    SECTION("a directory without other flags means both streams, to file and console") {
        StartedProcess run(command({"--nproc-per-node=1", flag}, {"out=said\n", "err=erred\n"}));
        CHECK(run.status() == 0);
        CHECK(run.out() == "[0]:said\n");
        CHECK(run.err() == "[0]:erred\n");
        CHECK(log("attempt_0/0/stdout.log") + log("attempt_0/0/stderr.log") == "said\nerred\n");
    }
}

TEST_CASE("logs that are deleted during a run cause a warning, and the ranks continue") {
    const TemporaryDirectory directory;
    const std::string logs = (directory / "logs").string();
    StartedProcess run({LOCKSTEP_RUN, "--nproc-per-node=1", "--log-dir=" + logs, "--tee=1", "sh", "-c",
                        "echo one; rm -r '" + logs + "'; echo two"});
    CHECK(run.status() == 0);
    CHECK(run.out() == "[0]:one\n[0]:two\n");
    CHECK_THAT(run.err(), contains("a log was deleted; the ranks continue"));
    CHECK_FALSE(std::filesystem::exists(logs));
}

TEST_CASE("the last ten lines are reported") {
    std::string text;
    for (int i = 0; i < 2000; ++i) text += "line " + std::to_string(i) + "\n";
    StartedProcess run(command({"--nproc-per-node=1"}, {"err=" + text, "exit=1"}));
    CHECK(run.status() == 1);
    const std::string err = run.err();
    CHECK(err.rfind(text, 0) == 0);
    CHECK_THAT(err.substr(text.size()), contains("on stderr:\n  line 1990\n"));
}

TEST_CASE("an unread console does not block forever") {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    const TemporaryDirectory directory;
    StartedProcess run(
        {LOCKSTEP_RUN, "--nproc-per-node=2", "--grace=0.2", "sh", "-c",
         "echo $$ >" + shell_word(directory.path()) + "/$RANK; while :; do echo more and more >&2; done"},
        {.err = ends[1]});
    const auto ranks = processes_in(directory, 2);
    CHECK(comes_true([&] {  // the pipe is full
        pollfd console{ends[1], POLLOUT, 0};
        return ::poll(&console, 1, 0) == 0;
    }));
    ::close(ends[1]);
    CHECK_FALSE(run.ended());
    run.send(SIGTERM);
    // Its own last line waits for the reader, like any program's.
    CHECK(none_runs(ranks));
    std::array<char, 4096> bytes{};
    while (!run.ended() && ::read(ends[0], bytes.data(), bytes.size()) > 0) {
    }
    ::close(ends[0]);
    CHECK(run.status() == 1);
}

TEST_CASE("a process outside the group that holds a rank's stream open does not delay the end") {
    const TemporaryDirectory directory;
    const std::string file = (directory / "pid").string();
    StartedProcess run(
        {LOCKSTEP_RUN, "--nproc-per-node=1", "sh", "-c",
         "setsid sh -c 'echo $$ >\"$0\"; exec sleep 3600' \"$0\" & while [ ! -s \"$0\" ]; do sleep 0.01; done", file});
    CHECK(run.status() == 0);
    const auto left = processes_in(directory, 1);
    CHECK(is_running(left.front()));  // it has left its group
    ::kill(left.front(), SIGKILL);
}
