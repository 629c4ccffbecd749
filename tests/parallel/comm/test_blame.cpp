// Ranks named in errors after a deadline: those that did not arrive, and none that only waits for them. Also: time in
// which a process did not run does not count.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <list>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/comm/store/deadline.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/fixtures/ranks.h"

using namespace lockstep;
using namespace lockstep::test;
using std::chrono::milliseconds;

namespace {

using Ranks = std::set<int>;

/// Ranks that `text` blames: "ranks 1, 3 have not arrived".
Ranks blamed_in(const std::string& text) {
    static const std::regex blame(
        "ranks? ([0-9, ]+) (?:has|have) (?:not arrived|arrived and|not connected)|"
        "ranks? ([0-9, ]+) did not come");
    Ranks ranks;
    for (std::sregex_iterator one(text.begin(), text.end(), blame), end; one != end; ++one) {
        std::string list = (*one)[1].matched ? (*one)[1].str() : (*one)[2].str();
        std::replace(list.begin(), list.end(), ',', ' ');
        std::istringstream words(list);
        for (int rank = 0; words >> rank;) ranks.insert(rank);
    }
    return ranks;
}

/// Rank 0 begins last and reaches its deadline first. Most others receive its result.
constexpr milliseconds deadline_of_rank_0(6000), deadline_of_others(20000);

struct TriedBackend {
    std::string name;
    bool several_hosts = false;  ///< two, with ranks assigned alternately
};

struct Trial {
    std::string what;
    int size;
    Ranks stopped;
    /// Action of a rank after the barrier; the stopped ones are stopped before it.
    std::function<void(ProcessGroup& group, ProcessGroup& other)> body;
};

const Tensor& some() {
    static const Tensor tensor = Tensor::zeros({4});
    return tensor;
}

std::vector<Trial> trials() {
    const auto barrier = [](ProcessGroup& group, ProcessGroup&) { group.barrier(); };
    return {
        {"barrier", 3, {1}, barrier},
        {"barrier, two stopped", 4, {1, 3}, barrier},
        {"all_reduce", 8, {5}, [](ProcessGroup& group, ProcessGroup&) { group.all_reduce(some()); }},
        {"reduce to rank 0, then a barrier",
         4,
         {2},
         [](ProcessGroup& group, ProcessGroup&) {
             group.reduce(some(), 0);
             group.barrier();
         }},
        {"broadcast from the stopped rank, and rank 0 starts with a barrier",
         3,
         {1},
         [](ProcessGroup& group, ProcessGroup&) {
             if (group.rank() != 0) group.broadcast(some(), 1);
             if (group.rank() == 0) group.broadcast(some(), 0);
             group.barrier();
         }},
        {"a chain of receives",
         4,
         {1},
         [](ProcessGroup& group, ProcessGroup&) {
             if (group.rank() == 2) group.recv(some(), 1);
             if (group.rank() == 3) group.recv(some(), 2);
             group.barrier();
         }},
        {"rank 2 waits in another group",
         3,
         {1},
         [](ProcessGroup& group, ProcessGroup& other) {
             if (group.rank() == 2) other.barrier();
             group.barrier();
         }},
        {"monitored barrier after a receive",
         4,
         {1},
         [](ProcessGroup& group, ProcessGroup&) {
             if (group.rank() == 2) group.recv(some(), 1);
             group.monitored_barrier(deadline_of_rank_0);
         }},
    };
}

/// A running trial: its ranks begin once the stopped ones have stopped.
class TrialRun {
public:
    TrialRun(TriedBackend backend, Trial trial)
        : backend_(std::move(backend)),
          trial_(std::move(trial)),
          ranks_(trial_.size, [this](int rank) { return lines_of_rank(rank); }) {}

    std::string what() const {
        return backend_.name + (backend_.several_hosts ? " on two hosts: " : ": ") + trial_.what;
    }
    /// Waits until all ranks have passed the barrier, and the stopped ones have stopped.
    void wait_until_ready() const {
        for (const int rank : trial_.stopped) ranks_.wait_until_stopped(rank);
    }
    void begin() const { lockstep::test::put_bytes(place_ / "go", ""); }
    /// The wrongly blamed ranks; empty: none.
    std::string end() {
        ranks_.let_others_end({trial_.stopped.begin(), trial_.stopped.end()});
        for (const int rank : trial_.stopped) ranks_.signal(rank, SIGKILL);
        std::string wrong;
        bool named = false;
        const auto ends = ranks_.finish();
        for (std::size_t rank = 0; rank < ends.size(); ++rank) {
            if (trial_.stopped.count(static_cast<int>(rank)) != 0) continue;
            const std::string text = ends[rank].empty() ? "" : ends[rank].front();
            const std::string expected = fmt::format("{}: ", fmt::join(trial_.stopped, " "));
            named = named || text.starts_with(expected);
            if (!text.starts_with(expected) && !text.starts_with(": "))
                wrong += fmt::format("rank {}: {}\n", rank, text);
            if (rank == 0 && !text.starts_with(expected))
                wrong += fmt::format("unexpected error of rank 0: {}\n", text);
        }
        return named ? wrong : wrong + "no error names a missing rank\n";
    }

private:
    Lines lines_of_rank(int rank) const {
        if (backend_.several_hosts) setenv("LOCKSTEP_HOST_ID", rank % 2 == 0 ? "a" : "b", 1);
        ProcessGroupOptions options = group_options(backend_.name, place_, rank, trial_.size, deadline_of_others);
        options.rendezvous.init_method = tcp_;
        if (rank == 0) options.time_limit = deadline_of_rank_0;
        ProcessGroup group(options);
        const auto other = group.duplicate();
        group.barrier();
        if (trial_.stopped.count(rank) != 0) {
            ::raise(SIGSTOP);
            return {};
        }
        while (!std::filesystem::exists(place_ / "go")) pause_for(milliseconds(5));
        begun_->fetch_add(1);
        // No other rank is late for the call in which rank 0 waits.
        while (rank == 0 && *begun_ < trial_.size - static_cast<int>(trial_.stopped.size())) pause_for(milliseconds(5));
        const std::string text = message_of<CommunicationError>([&] { trial_.body(group, *other); });
        return {fmt::format("{}: {}", fmt::join(blamed_in(text), " "), text)};
    }

    const TriedBackend backend_;
    const Trial trial_;
    const TemporaryDirectory place_;
    const Descriptor port_ = hold_free_port();
    const std::string tcp_ = fmt::format("tcp://127.0.0.1:{}", port_of(port_));
    const Shared<std::atomic<int>> begun_;  ///< ranks
    ForkedRanks ranks_;
};

}  // namespace

TEST_CASE("blame: only ranks that did not arrive are named") {
    std::list<TrialRun> runs;  // at the same time, since their ranks only wait
    for (const std::string& name : forkable_backends())
        for (const bool several_hosts : {false, true}) {
            if (several_hosts && (name != "shm" || !is_built_in("gloo"))) continue;
            for (const Trial& trial : trials()) {
                if (trial.size > max_ranks) continue;
                runs.emplace_back(TriedBackend{name, several_hosts}, trial);
                runs.back().wait_until_ready();
            }
        }
    for (TrialRun& run : runs) run.begin();
    for (TrialRun& run : runs) {
        INFO(run.what());
        CHECK(run.end() == "");
    }
}

TEST_CASE("run time: gaps between readings count for one step at most") {
    using std::chrono::seconds;
    RunTime time;
    const auto begin = time.at(seconds(1000));
    const auto is_near = [](RunTime::Nanoseconds passed, RunTime::Nanoseconds expected, int gaps) {
        CAPTURE(passed.count(), expected.count());
        CHECK(passed >= expected - gaps * RunTime::resolution);
        CHECK(passed <= expected + gaps * RunTime::resolution);
    };
    is_near(time.at(seconds(1000) + milliseconds(100)) - begin, milliseconds(100), 0);
    is_near(time.at(seconds(1000) + milliseconds(200)) - begin, milliseconds(200), 0);
    is_near(time.at(seconds(1000) + milliseconds(300)) - begin, milliseconds(300), 0);
    // Stopped for an hour: one step.
    is_near(time.at(seconds(4600)) - begin, milliseconds(300) + RunTime::longest_step, 1);
    is_near(time.at(seconds(4600) + milliseconds(50)) - begin, milliseconds(350) + RunTime::longest_step, 1);
    // A reading of another thread that is older but used later.
    is_near(time.at(seconds(4600)) - begin, milliseconds(300) + RunTime::longest_step, 1);
    // Stopped again and again, between waits of 200 ms.
    auto now = seconds(5000) + milliseconds(0);
    const auto before = time.at(now);
    for (int i = 0; i < 10; ++i) {
        time.at(now += milliseconds(200));
        time.at(now += seconds(60));
    }
    is_near(time.at(now) - before, 10 * (milliseconds(200) + RunTime::longest_step), 10);
    // The ticks start again at 0 after 417 days.
    RunTime old;
    const RunTime::Nanoseconds late = RunTime::resolution * 0xffff'fff0;
    const auto start = old.at(late);
    is_near(old.at(late + milliseconds(240)) - start, milliseconds(240), 0);
    is_near(old.at(late + seconds(3600)) - start, milliseconds(240) + RunTime::longest_step, 1);
}

TEST_CASE("run time: threads that read it at once after a gap agree") {
    using std::chrono::seconds;
    constexpr int most_rounds = 60000, threads = 4;
    RunTime time;
    const RunTime::Nanoseconds begin = time.at(seconds(1000));
    std::atomic<int> wrong{0};
    int round = 1;
    // On a busy machine a round takes milliseconds.
    const auto end = std::chrono::steady_clock::now() + seconds(2);
    std::barrier together(threads, [&]() noexcept {
        if (++round > most_rounds || std::chrono::steady_clock::now() >= end) round = 0;
    });
    std::vector<std::thread> all;
    for (int i = 0; i < threads; ++i)
        all.emplace_back([&] {
            RunTime::Nanoseconds last = begin;
            while (round != 0) {
                const auto now = time.at(seconds(1000) + round * seconds(10));
                if (now < last || now > last + RunTime::longest_step + RunTime::resolution) ++wrong;
                last = now;
                together.arrive_and_wait();
            }
        });
    for (std::thread& one : all) one.join();
    CHECK(wrong == 0);
}

namespace {

/// Three ranks, two of which wait for rank 2, which arrives after the job has been suspended.
class SuspendedJob {
public:
    SuspendedJob(const std::string& backend, std::string where)
        : what_(backend + ", " + where), where_(std::move(where)), ranks_(size, [this, backend](int rank) {
              ProcessGroupOptions options = group_options(backend, place_, rank, size, limit);
              options.rendezvous.init_method = tcp_;
              options.rendezvous.time_limit = limit;
              ProcessGroup group(options);
              group.barrier();
              lockstep::test::put_bytes(place_ / fmt::format("ready{}", rank), "");
              while (rank == 2 && !std::filesystem::exists(place_ / "go")) pause_for(milliseconds(5));
              meet(group);
              group.barrier();
              return Lines();
          }) {}

    static constexpr milliseconds limit{10000};
    const std::string& what() const { return what_; }
    void suspend() const {
        for (int rank = 0; rank < size; ++rank)
            while (!std::filesystem::exists(place_ / fmt::format("ready{}", rank))) pause_for(milliseconds(5));
        for (int rank = 0; rank < size; ++rank) ranks_.signal(rank, SIGSTOP);
        for (int rank = 0; rank < size; ++rank) ranks_.wait_until_stopped(rank);
    }
    /// Returns the errors.
    std::string resume() {
        lockstep::test::put_bytes(place_ / "go", "");
        for (int rank = 0; rank < size; ++rank) ranks_.signal(rank, SIGCONT);
        return joined(ranks_.finish());
    }

private:
    static constexpr int size = 3;
    void meet(ProcessGroup& group) const {
        const int rank = group.rank();
        if (where_ == "barrier") group.barrier();
        if (where_ == "receive") rank == 2 ? group.send(some(), 0) : rank == 0 ? (void)group.recv(some(), 2) : void();
        if (where_ == "store") rank == 2 ? group.store()->set("key", "value") : (void)group.store()->get("key");
        if (where_ == "new group") (void)group.duplicate();
    }

    const std::string what_, where_;
    const TemporaryDirectory place_;
    const Descriptor port_ = hold_free_port();
    const std::string tcp_ = fmt::format("tcp://127.0.0.1:{}", port_of(port_));
    ForkedRanks ranks_;
};

}  // namespace

TEST_CASE("a suspended job continues from any operation that it was suspended in") {
    std::list<SuspendedJob> jobs;
    for (const std::string& backend : forkable_backends())
        for (const char* where : {"barrier", "receive", "store", "new group"}) {
            jobs.emplace_back(backend, where);
            jobs.back().suspend();
        }
    std::this_thread::sleep_for(SuspendedJob::limit + milliseconds(500));
    for (SuspendedJob& job : jobs) {
        INFO(job.what());
        CHECK(job.resume() == "");
    }
}
