// launch() within a program: the calls that it refuses, the state that it restores, and a program that starts itself.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <future>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/launcher.h"
#include "lockstep/parallel/comm/store.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/parallel/launch/lockstep_run.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::get_bytes;
using lockstep::test::message_of;
using lockstep::test::put_bytes;
using lockstep::test::StartedProcess;
using lockstep::test::TemporaryDirectory;
using lockstep::test::Words;

namespace {

LaunchOptions worker(const Words& actions, int processes) {
    LaunchOptions options;
    options.command = {LAUNCH_WORKER};
    options.command.insert(options.command.end(), actions.begin(), actions.end());
    options.processes = processes;
    options.grace = std::chrono::milliseconds(300);
    return options;
}

std::string refusal(const LaunchOptions& options) {
    return message_of<InvalidArgument>([&] { launch(options); });
}

int caught = 0;

}  // namespace

TEST_CASE("results name the rank that failed first, and how") {
    const LaunchResult well = launch(worker({"sleep=1"}, 2));
    CHECK(well.success());
    CHECK(well.restarts == 0);
    CHECK(well.str() == "all ranks succeeded");

    LaunchOptions options = worker({"only=1", "err=why\n", "exit=9"}, 2);
    options.max_restarts = 1;
    std::vector<std::string> heard;
    options.on_restart = [&](const RankFailure& failure) { heard.push_back(failure.str()); };
    options.redirects = {Streams::err, Streams::err};
    const TemporaryDirectory directory;
    options.log_dir = directory.path();
    const LaunchResult failed = launch(options);
    CHECK_FALSE(failed.success());
    REQUIRE(failed.failure);
    CHECK(failed.failure->rank == 1);
    CHECK(failed.failure->exit_status == 9);
    CHECK(failed.failure->signal == 0);
    CHECK(failed.failure->last_lines == Words{"why"});
    CHECK(failed.restarts == 1);
    CHECK(failed.str() == "rank 1 failed first: exit status 9; the limit of 1 restart is reached");
    CHECK(heard == Words{"rank 1 failed first: exit status 9"});

    const LaunchResult killed = launch(worker({"only=0", "kill=15"}, 2));
    CHECK(killed.failure->signal == SIGTERM);
    CHECK(killed.str() == "rank 0 failed first: killed by signal 15 (SIGTERM)");
}

TEST_CASE("the rank with the earliest recorded failure failed first, in whatever order ranks end") {
    const TemporaryDirectory directory;
    const std::string where = directory.path().string();
    // Rank 1 ends two seconds after the others.
    LaunchOptions options =
        worker({"note=1", "pid=" + where, "after=" + where + "/1", "sleep=1000", "slow=1", "exit=7"}, 3);
    options.grace = test::no_limit;
    CHECK(launch(options).str() == "rank 1 failed first: exit status 7");
    // A killed rank cannot record its failure, and the others notice it before the launcher does.
    options.command = worker({"note=1", "sleep=100", "note=0", "only=2", "kill=9"}, 3).command;
    options.grace = std::chrono::milliseconds(300);
    CHECK(launch(options).str() == "rank 2 failed first: killed by signal 9 (SIGKILL)");
}

TEST_CASE("a rank that others waited for failed first, not the ranks that waited") {
    // No rank begins with `then` before all ranks have done `actions`, however busy the machine is.
    const auto result = [](Words actions, int ranks, const Words& then) {
        const TemporaryDirectory directory;
        actions.push_back("pid=" + directory.path().string());
        for (int rank = 0; rank < ranks; ++rank)
            actions.push_back("after=" + (directory / std::to_string(rank)).string());
        actions.insert(actions.end(), then.begin(), then.end());
        LaunchOptions options = worker(actions, ranks);
        options.grace = std::chrono::seconds(2);
        return launch(options);
    };
    const auto first = [&](const Words& actions, const Words& then) { return result(actions, 3, then).str(); };
    CHECK(first({"missed=0", "missed=2"}, {"stop=1", "sleep=100", "exit=1"}) ==
          "rank 1 failed first: stopped by signal 19 (SIGSTOP), and others timed out waiting for it");
    CHECK(first({"missed=0", "missed=2"}, {"hang=1", "sleep=100", "exit=1"}) ==
          "rank 1 failed first: it made no progress, and others timed out waiting for it");
    // A rank that hangs because another one has failed is not the cause, nor is one that notices the failure later.
    CHECK(first({"missed=0"}, {"hang=1", "exit=7"}) == "rank 2 failed first: exit status 7");
    CHECK(first({"missed=0", "missed=2"}, {"sleep=50", "exit=7"}) == "rank 1 failed first: exit status 7");

    const LaunchResult stopped = result({"missed=0"}, 2, {"stop=1", "sleep=100", "exit=1"});
    REQUIRE(stopped.failure);
    CHECK(stopped.failure->silent);
    CHECK(stopped.failure->stopped_by == SIGSTOP);
    CHECK(stopped.failure->exit_status == 0);
    CHECK(stopped.failure->signal == 0);
}

TEST_CASE("invalid options of a launch are rejected") {
    const LaunchOptions good = worker({}, 2);
    const auto with = [&](auto change) {
        LaunchOptions options = good;
        change(options);
        return refusal(options);
    };
    CHECK(contains(with([](auto& o) { o.command.clear(); }), "no program; expected"));
    CHECK(contains(with([](auto& o) { o.command = {""}; }), "no program; expected"));
    CHECK(contains(with([](auto& o) { o.processes = 0; }), "0 processes"));
    CHECK(contains(with([](auto& o) { o.master_port = -1; }), "master port -1"));
    for (const char* address : {"a b", "a/b", "tcp://a", "a:1", "a\nb"})
        CHECK(contains(with([&](auto& o) { o.master_addr = address; }), "expected a host name or an IP address"));
    CHECK(contains(with([](auto& o) { o.max_restarts = -1; }), "-1 restarts"));
    CHECK(contains(with([](auto& o) { o.grace = std::chrono::milliseconds(-1); }), "grace"));
    CHECK(contains(with([](auto& o) { o.forwarded_signals = {SIGCHLD}; }), "SIGCHLD"));
    CHECK(contains(with([](auto& o) { o.tee = {Streams::out}; }), "1 local ranks were selected, but there are 2"));
    CHECK(contains(with([](auto& o) { o.nodes = 2; }), "node rank, master address and master port"));
    CHECK(with([](auto&) {}).empty());
}

TEST_CASE("logs of ranks do not follow another user's link in a shared directory") {
    if (::geteuid() != 0) {
        WARN("skipped: only root can give links away");
        return;
    }
    const TemporaryDirectory directory;
    const std::filesystem::path shared = directory / "shared", victim = directory / "victim";
    std::filesystem::create_directory(shared);
    std::filesystem::create_directories(victim / "attempt_0/0");
    std::filesystem::create_directory_symlink(victim, shared / "logs");
    std::filesystem::create_directory_symlink(victim / "attempt_0", shared / "attempt_0");
    for (const char* name : {"logs", "attempt_0"}) REQUIRE(::lchown((shared / name).c_str(), 12345, 12345) == 0);
    const std::vector<std::filesystem::path> files{victim / "attempt_0/0/stdout.log",
                                                   victim / "attempt_0/0/stderr.log"};
    for (const auto& file : files) put_bytes(file, "old");
    LaunchOptions options = worker({"sleep=1"}, 1);
    options.redirects = {Streams::both};
    for (const std::filesystem::path& place : {shared / "logs", shared}) {
        CAPTURE(place.string());
        options.log_dir = place;
        REQUIRE(::chmod(shared.c_str(), 01777) == 0);
        CHECK(contains(refusal(options), "a symbolic link of another user (12345)"));
        for (const auto& file : files) CHECK(get_bytes(file) == "old");
    }
    REQUIRE(::chmod(shared.c_str(), 0755) == 0);  // no other user may write there
    CHECK(launch(options).success());
    for (const auto& file : files) CHECK(get_bytes(file).empty());
}

TEST_CASE("a number of ranks is a number or names what to count") {
    CHECK(processes_per_node("1") == 1);
    CHECK(processes_per_node("1024") == 1024);
    CHECK(processes_per_node("cpu") >= 1);
    for (const char* text : {"", "0", "1025", "+1", "1 ", "CPU", "auto,1", "99999999999999999999"})
        CHECK(contains(message_of<InvalidArgument>([&] { processes_per_node(text); }), "expected 1 to 1024"));
}

TEST_CASE("a reserved port is not assigned to others, except if requested by number") {
    const Descriptor held = hold_free_port();
    const int port = port_of(held);
    for (int i = 0; i < 200; ++i) {
        CHECK(port_of(hold_free_port()) != port);
        CHECK(port_of(listen_on("127.0.0.1", 0)) != port);
    }
    const Descriptor plain(::socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    CHECK(::bind(plain.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0);
    const TcpStoreServer server({.port = port});
    TcpStore store({.port = port});
    CHECK(store.add("n", 1) == 1);
}

TEST_CASE("one launch at a time, from any thread of a program") {
    const TemporaryDirectory directory, other;
    const std::string go = (other / "go").string();
    std::future<LaunchResult> first = std::async(std::launch::async, [&] {
        return launch(worker({"pid=" + directory.path().string(), "after=" + go}, 2));
    });
    REQUIRE(test::processes_in(directory, 2).size() == 2);
    CHECK(contains(message_of<Error>([] { launch(worker({}, 1)); }), "another launch is running"));
    test::put_bytes(go, "");
    CHECK(first.get().success());
    CHECK(launch(worker({}, 1)).success());
}

TEST_CASE("signal handlers are restored, and ignored signals stay ignored") {
    caught = 0;
    void (*const before)(int) = std::signal(SIGINT, [](int) { ++caught; });
    void (*const hang_up)(int) = std::signal(SIGHUP, SIG_IGN);
    void (*const child)(int) = std::signal(SIGCHLD, SIG_IGN);  // then the system would reap the ranks
    const TemporaryDirectory directory;
    std::thread user([&] {
        test::processes_in(directory, 1);
        ::kill(::getpid(), SIGHUP);
        ::kill(::getpid(), SIGINT);
    });
    const LaunchResult result = launch(worker({"pid=" + directory.path().string(), "sleep=600000"}, 1));
    user.join();
    CHECK(result.signal == SIGINT);
    CHECK_FALSE(result.failure);
    CHECK(result.str() == "ended by signal 2 (SIGINT) from outside");
    CHECK(caught == 0);
    std::raise(SIGINT);
    CHECK(caught == 1);
    CHECK(launch(worker({"exit=3"}, 1)).failure->exit_status == 3);
    CHECK(std::signal(SIGCHLD, child) == SIG_IGN);
    std::signal(SIGHUP, hang_up);
    std::signal(SIGINT, before);
}

TEST_CASE("ranks that save when they are asked to end have extra time") {
    const bool enough = GENERATE(true, false);
    LaunchOptions options = worker({"deaf=15"}, 2);
    const TemporaryDirectory directory, other;
    const std::string saved = (other / "saved").string();
    options.command.push_back("pid=" + directory.path().string());
    options.command.push_back("after=" + saved);
    options.grace = std::chrono::milliseconds(100);
    options.stop_grace = enough ? test::no_limit : std::chrono::milliseconds(200);
    std::thread user([&] {
        test::processes_in(directory, 2);
        ::kill(::getpid(), SIGTERM);
        if (!enough) return;                                          // then they never save
        std::this_thread::sleep_for(std::chrono::milliseconds(300));  // longer than the usual grace period
        test::put_bytes(saved, "");
    });
    const LaunchResult result = launch(options);
    user.join();
    CHECK(result.signal == SIGTERM);
    CHECK(result.killed == !enough);
}

TEST_CASE("a program starts itself once per rank") {
    StartedProcess run({LAUNCH_WORKER, "self=3", "join", "exit=0"});
    CHECK(run.status() == 0);
    CHECK(run.lines() ==
          Words{"joined 0/3 launcher 1 sum 5", "joined 1/3 launcher 1 sum 5", "joined 2/3 launcher 1 sum 5"});
    CHECK(run.err() == "launched: all ranks succeeded\n");
}

TEST_CASE("a line that several ranks write is printed as often as the rank that writes it most") {
    StartedProcess run({LAUNCH_WORKER, "self=3", "err=one\ntwo\n", "sleep=50", "err=on", "err=e\n"});
    CHECK(run.status() == 0);
    CHECK(run.err() == "one\ntwo\none\nlaunched: all ranks succeeded\n");
}

TEST_CASE("a hundred launches leak no descriptor and no process") {
    const auto descriptors = [] {
        return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                             std::filesystem::directory_iterator());
    };
    LaunchOptions options = worker({}, 3);
    options.command = {"true"};
    REQUIRE(launch(options).success());
    const auto before = descriptors();
    for (int i = 0; i < 100; ++i) {
        options.command = {i % 2 ? "true" : "false"};
        CHECK(launch(options).success() == (i % 2 == 1));
    }
    CHECK(descriptors() == before);
    CHECK(::waitpid(-1, nullptr, WNOHANG) == -1);
}
