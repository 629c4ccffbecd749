// Errors on the other ranks when a rank of a process group has left or does not arrive, and how groups end.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/comm/store/rank_exits.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/fixtures/ranks.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using namespace lockstep::test;
using std::chrono::milliseconds;

namespace {

/// Counts ranks that have reported; others wait for them.
class Said {
public:
    void one() const { ++*count_; }
    void wait_for(int ranks) const {
        if (!test::comes_true([&] { return *count_ >= ranks; })) throw Error("the other ranks do not respond");
    }

private:
    Shared<std::atomic<int>> count_;
};

}  // namespace

TEST_CASE("if a rank dies in an operation, all others get an error before the deadline") {
    struct Operation {
        std::string name;
        std::function<void(ProcessGroup&)> call;
    };
    const std::vector<Operation> operations{
        {"all_reduce number 3", [](ProcessGroup& group) { group.all_reduce(Tensor::zeros({1 << 20})); }},
        {"broadcast number 3", [](ProcessGroup& group) { group.broadcast(Tensor::zeros({1 << 20}), 1); }},
        {"all_to_all number 3",
         [](ProcessGroup& group) {
             group.all_to_all(Tensor::zeros({3, 9}), Tensor::zeros({3, 9}));
         }},
        {"barrier number 3", [](ProcessGroup& group) { group.barrier_async().wait(); }},
        {"receive from rank 1",
         [](ProcessGroup& group) { group.rank() == 1 ? group.barrier() : (void)group.recv(Tensor::zeros({9}), 1); }},
    };
    for (const std::string& backend : forkable_backends())
        for (const Operation& operation : operations) {
            const TemporaryDirectory place;
            ForkedRanks ranks(3, [&](int rank) -> Lines {
                ProcessGroup group(group_options(backend, place, rank, 3));
                group.barrier();
                group.barrier();
                if (rank == 1) {
                    std::this_thread::sleep_for(milliseconds(300));  // usually the others are waiting by then
                    ::raise(SIGKILL);
                }
                const std::string message = message_of<CommunicationError>([&] { operation.call(group); });
                Lines lines;
                for (const std::string& part : {fmt::format("rank {} of 3", rank), operation.name, backend})
                    if (!contains(message, part)) lines.push_back(fmt::format("'{}' lacks '{}'", message, part));
                const std::string again = message_of<CommunicationError>([&] { group.barrier(); });
                if (again.empty()) lines.emplace_back("an operation of a failed group succeeded");
                return lines;
            });
            INFO(backend << ": " << operation.name);
            CHECK(joined(ranks.finish()) == "rank 1: ended by signal 9\n");
        }
}

TEST_CASE("the error about a stopped rank says where it was last seen, not that it died") {
    constexpr int rounds = 40;
    for (const std::string& backend : forkable_backends())
        for (const int stopped : {1, 0}) {
            const TemporaryDirectory place;
            const Descriptor held = hold_free_port();
            const std::string tcp = fmt::format("tcp://127.0.0.1:{}", port_of(held));
            const Said said;
            ForkedRanks ranks(3, [&](int rank) {
                ProcessGroupOptions options = group_options(backend, place, rank, 3, milliseconds(6000));
                options.rendezvous.init_method = tcp;
                ProcessGroup group(options);
                if (rank == stopped) lockstep::test::put_bytes(place / "stopped", std::to_string(::getpid()));
                const Tensor x = Tensor::zeros({9});
                for (int i = 0; i < rounds; ++i) {
                    group.all_reduce(x);
                    std::this_thread::sleep_for(milliseconds(20));
                }
                if (rank == stopped) ::raise(SIGSTOP);
                const std::string message = message_of<CommunicationError>([&] { group.all_reduce(x); });
                if (rank == stopped) return Lines{};
                Lines lines;
                // Includes the last progress that the stopped rank could report.
                const std::string seen = fmt::format("(rank 1 was last seen in all_reduce number {})", rounds);
                if (stopped == 1 && !contains(message, seen)) lines.push_back(message);
                if (stopped == 0 && !contains(message, "the process of rank 0 may be stopped"))
                    lines.push_back(message);
                if (contains(message, "died") || contains(message, "has closed the connection"))
                    lines.push_back(message);
                said.one();
                said.wait_for(2);  // the other rank gets the same error
                ::kill(std::stoi(lockstep::test::get_bytes(place / "stopped")), SIGCONT);
                return lines;
            });
            INFO(backend << ", rank " << stopped);
            CHECK(joined(ranks.finish()) == "");
        }
}

TEST_CASE("missing ranks are named at the deadline") {
    for (const std::string& backend : forkable_backends()) {
        const Said present, said;
        CHECK(on_ranks(backend, 4, [&](ProcessGroup& group) {
                  Lines lines;
                  if (group.rank() % 2 == 1) {
                      said.wait_for(2);
                      return lines;
                  }
                  present.one();
                  present.wait_for(2);
                  const std::string message =
                      message_of<CommunicationError>([&] { group.monitored_barrier(milliseconds(1000)); });
                  said.one();
                  if (message.empty()) lines.emplace_back("the error names no missing rank");
                  if (group.rank() == 0 && !contains(message, "ranks 1, 3 did not arrive within 1000 ms"))
                      lines.push_back(message);
                  return lines;
              }) == "");
        // A receive without a matching send, with each way of waiting.
        for (const bool blocking : {true, false}) {
            const Said answer;
            CHECK(on_ranks(
                      backend, 2,
                      [&](ProcessGroup& group) {
                          Lines lines;
                          if (group.rank() == 1) {
                              answer.wait_for(1);
                              return lines;
                          }
                          const std::string message = message_of<CommunicationError>([&] {
                              const Tensor x = Tensor::zeros({2});
                              blocking ? (void)group.recv(x, 1) : group.irecv(x).wait();
                          });
                          answer.one();
                          if (!contains(message, "not done within 2000 ms")) lines.push_back(message);
                          return lines;
                      },
                      milliseconds(2000)) == "");
        }
    }
}

TEST_CASE("destroying a group ends pending operations on all ranks and never hangs") {
    for (const std::string& backend : forkable_backends()) {
        const TemporaryDirectory place;
        ForkedRanks ranks(3, [&](int rank) {
            Lines lines;
            auto group = std::make_unique<ProcessGroup>(group_options(backend, place, rank, 3));
            group->barrier();
            std::vector<ProcessGroup::Work> works;
            std::string message;
            if (rank == 0) {
                // None of these completes; their tensors are destroyed first.
                const ProcessGroup::Work sent = group->isend(Tensor::zeros({3 << 20}), 2);  // rank 2 may buffer it
                works.push_back(group->irecv(Tensor::zeros({5}), 1));
                works.push_back(group->all_reduce_async(Tensor::zeros({1 << 20})));
                works.push_back(group->barrier_async());
                std::this_thread::sleep_for(milliseconds(100));
                group.reset();
                if (!sent.done()) lines.emplace_back("a message outlived its group");
                for (const ProcessGroup::Work& work : works)
                    if (!work.done() || message_of<CommunicationError>([&] { work.wait(); }).empty())
                        lines.emplace_back("an operation outlived its group");
            } else {
                message = message_of<CommunicationError>([&] { group->irecv(Tensor::zeros({1}), 0, 9).wait(); });
                const bool tells =
                    contains(message, backend == "shm" ? "rank 0 has left the group" : "to rank 0 is closed");
                if (!tells) lines.push_back("it says " + message);
                group.reset();
            }
            return lines;
        });
        CHECK(joined(ranks.finish()) == "");
    }
}

TEST_CASE("gloo: an error names the rank that ended the job, not a rank that left as a result") {
    const std::vector<std::string> backends = forkable_backends();
    if (std::find(backends.begin(), backends.end(), "gloo") == backends.end()) return;
    const TemporaryDirectory place;
    const Said said;
    ForkedRanks ranks(3, [&](int rank) -> Lines {
        ProcessGroup group(group_options("gloo", place, rank, 3));
        auto other = group.duplicate();
        other->barrier();
        if (rank == 0) {
            const std::string message = message_of<CommunicationError>([&] { other->barrier(); });
            said.one();
            return contains(message, "rank 1 has not arrived yet") ? Lines{} : Lines{message};
        }
        std::string first = "rank 1";
        if (rank == 1) group.abort("rank 1 was told to end");
        if (rank == 2) {
            first = message_of<CommunicationError>([&] { group.barrier(); });
            other.reset();
        }
        said.wait_for(1);  // until then, rank 1 is connected in the other group, and the store exists
        return contains(first, "rank 1") ? Lines{} : Lines{first};
    });
    CHECK(joined(ranks.finish()) == "");
}

TEST_CASE("a rank that dies between two groups is detected before the deadline") {
    for (const std::string& backend : forkable_backends())
        for (const bool by_exception : {true, false}) {
            const TemporaryDirectory place;
            // Only the server of a TCP store can detect that a process dies.
            const Descriptor held = hold_free_port();
            const std::string tcp = fmt::format("tcp://127.0.0.1:{}", port_of(held));
            ForkedRanks ranks(3, [&](int rank) {
                ProcessGroupOptions options = group_options(backend, place, rank, 3);
                if (!by_exception) options.rendezvous.init_method = tcp;
                const std::string message = message_of<Error>([&] {
                    ProcessGroup group(options);
                    group.barrier();
                    if (rank == 1 && by_exception) throw Error("an unrelated error");
                    if (rank == 1) ::raise(SIGKILL);
                    (void)group.communicator("second");
                });
                Lines lines;
                if (rank == 1) return lines;
                if (!contains(message, "rank 1")) lines.push_back("it says " + message);
                return lines;
            });
            INFO(backend << (by_exception ? ", an exception" : ", killed"));
            CHECK(joined(ranks.finish()) == (by_exception ? "" : "rank 1: ended by signal 9\n"));
        }
}

TEST_CASE("an operation that waits for a failed rank ends, even if the backend does not detect the failure") {
    for (const std::string& backend : forkable_backends()) {
        const Said said;
        CHECK(on_ranks(backend, 2, [&](ProcessGroup& group) {
                  Lines lines;
                  group.barrier();
                  if (group.rank() == 1) {
                      record_rank_exit(*group.store(), 1, RankExit::failed);
                      said.wait_for(1);
                      return lines;
                  }
                  const std::string message = message_of<CommunicationError>([&] { group.barrier(); });
                  said.one();
                  if (!contains(message, "rank 1 has failed")) lines.push_back(message);
                  return lines;
              }) == "");
    }
}

TEST_CASE("a group may be destroyed as soon as its work is done") {
    for (const std::string& backend : forkable_backends())
        CHECK(on_ranks(backend, 2, [](ProcessGroup& world) {
                  Lines lines;
                  for (int i = 0; i < 200; ++i) {
                      const auto group = world.duplicate();
                      const Tensor x = Tensor::zeros({1});
                      const std::string message = message_of<CommunicationError>([&] {
                          if (i % 2 == 0)
                              group->all_reduce_async(x).wait();
                          else
                              (world.rank() == 0 ? group->isend(x, 1) : group->irecv(x, 0)).wait();
                      });
                      if (!message.empty()) lines.push_back(message);
                  }
                  return lines;
              }) == "");
}
