// Process groups on tensors, on every backend: a start per backend and world size runs all the rest.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/departures.h"
#include "lockstep/parallel/comm/sockets.h"
#include "lockstep/parallel/process_group.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/tape.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/child_process.h"
#include "lockstep/tests/parallel/comm/forked_ranks.h"
#include "lockstep/tests/parallel/comm/group_exercise.h"
#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/runtime/gate.h"

using namespace lockstep;
using namespace lockstep::testing;
using lockstep::test::TemporaryDirectory;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Lines = std::vector<std::string>;

namespace {

bool built_in(const std::string& name) {
    for (const ProcessGroupBackend& backend : process_group_backends())
        if (backend.name == name) return backend.built_in;
    return false;
}

/// What can be started by forking: mpi's ranks are started by mpirun.
Lines backends() {
    Lines names;
    for (const char* name : {"shm", "gloo"})
        if (built_in(name))
            names.emplace_back(name);
        else
            WARN("skipped: " << name << " was not built in");
    return names;
}

ProcessGroupOptions options_of(const std::string& backend, const TemporaryDirectory& place, int rank, int size,
                               milliseconds timeout = std::chrono::seconds(60)) {
    return {.backend = backend,
            .rendezvous = {.init_method = "file://" + (place / "store").string(),
                           .rank = rank,
                           .world_size = size,
                           .timeout = std::chrono::seconds(60)},
            .timeout = timeout};
}

/// Runs `body` on `size` ranks; what they say, a line each.
std::string on_ranks(const std::string& backend, int size, const std::function<Lines(ProcessGroup&)>& body,
                     milliseconds timeout = std::chrono::seconds(60)) {
    const TemporaryDirectory place;
    ForkedRanks ranks(size, [&](int rank) {
        ProcessGroup group(options_of(backend, place, rank, size, timeout));
        return body(group);
    });
    return joined(ranks.finish(std::chrono::seconds(120)));
}

/// Milliseconds, of one clock for all processes.
long long now() { return std::chrono::duration_cast<milliseconds>(Clock::now().time_since_epoch()).count(); }

template <class Call>
void expect(Lines& lines, const std::string& what, const std::string& part, Call call) {
    const std::string message = message_of<InvalidArgument>(call);
    if (!contains(message, part) || message.find('\n') != std::string::npos)
        lines.push_back(fmt::format("{}: '{}' does not say '{}'", what, message, part));
}

}  // namespace

TEST_CASE("every operation gives what plain loops give, on 1 to 8 ranks") {
    for (const std::string& backend : backends())
        for (const int size : {1, 2, 3, 4, 8}) {
            INFO(backend << " with " << size << " ranks");
            CHECK(on_ranks(backend, size, [](ProcessGroup& group) {
                      Lines lines = exercise_group(group);
                      if (group.size() == 1) return lines;
                      const Lines more = exercise_group_messages(group);
                      lines.insert(lines.end(), more.begin(), more.end());
                      return lines;
                  }) == "");
        }
}

TEST_CASE("every operation under mpirun") {
    if (std::system("command -v mpirun >/dev/null") != 0) {
        WARN("skipped: there is no mpirun");
        return;
    }
    if (!built_in("mpi")) WARN("skipped: mpi was not built in");
    const std::vector<int> sizes = built_in("mpi") ? std::vector<int>{2, 3, 4, 8} : std::vector<int>{2};
    for (const int size : sizes) {
        const TemporaryDirectory place;
        const std::string here = place.path().string();
        const lockstep::test::ChildProcess job{
            .command = {"/usr/bin/env", "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                        "--timeout", "120", "-n", std::to_string(size), GROUP_RANK, built_in("mpi") ? "mpi" : "shm",
                        here},
            // MPI's files lie in the folder too; MPI leaves memory behind.
            .environment = {{"TMPDIR", here},
                            {"OMPI_MCA_btl_vader_backing_directory", here},
                            {"ASAN_OPTIONS", "detect_leaks=0"}},
            .output = (place / "output").string()};
        INFO(size << " ranks");
        CHECK(lockstep::test::run_child(job) == 0);
        for (int rank = 0; rank < size; ++rank)
            CHECK(lockstep::test::get_bytes(place / ("rank" + std::to_string(rank))) == "done\n");
    }
}

TEST_CASE("operations are compared in debug mode, and nothing is found where all is well") {
    setenv("LOCKSTEP_DEBUG", "detail", 1);
    for (const std::string& backend : backends()) {
        CHECK(on_ranks(backend, 3, [](ProcessGroup& group) { return exercise_group(group); }) == "");

        struct Mismatch {
            const char* name;
            std::function<void(ProcessGroup&)> call;
            Lines parts;  ///< of the message on both ranks
        };
        const std::vector<Mismatch> all{
            {"operation",
             [](ProcessGroup& group) {
                 const Tensor x = Tensor::zeros({4});
                 group.rank() == 0 ? group.all_reduce(x) : group.broadcast(x, 0);
             },
             {"rank 0 all_reduce of 16 bytes of f32 (sum)", "rank 1 broadcast of 16 bytes of f32 with root 0"}},
            {"size",
             [](ProcessGroup& group) { group.all_reduce(Tensor::zeros({group.rank() + 1})); },
             {"rank 0 all_reduce of 4 bytes", "rank 1 all_reduce of 8 bytes"}},
            {"dtype",
             [](ProcessGroup& group) {
                 group.broadcast(group.rank() == 0 ? Tensor::zeros({2}) : Tensor::zeros({1}, DType::f64), 0);
             },
             {"rank 0 broadcast of 8 bytes of f32", "rank 1 broadcast of 8 bytes of f64"}},
            {"reduction",
             [](ProcessGroup& group) {
                 group.all_reduce(Tensor::zeros({2}), group.rank() == 0 ? ReduceOp::min : ReduceOp::mean);
             },
             {"(min)", "(mean)"}},
            {"root",
             [](ProcessGroup& group) { group.broadcast(Tensor::zeros({2}), group.rank()); },
             {"with root 0", "with root 1"}},
            {"rows",
             [](ProcessGroup& group) {
                 if (group.rank() == 0)
                     group.all_to_all(Tensor::zeros({4}), Tensor::zeros({4}), {1, 3}, {1, 3});
                 else
                     group.all_to_all(Tensor::zeros({4}), Tensor::zeros({4}), {2, 2}, {3, 1});
             },
             {"call different things"}},
        };
        for (const Mismatch& mismatch : all) {
            INFO(backend << ": " << mismatch.name);
            CHECK(on_ranks(backend, 2, [&](ProcessGroup& group) {
                      Lines lines;
                      const std::string message = message_of<CommunicationError>([&] { mismatch.call(group); });
                      for (const std::string& part : mismatch.parts)
                          if (!contains(message, part)) lines.push_back(message + " lacks " + part);
                      return lines;
                  }) == "");
        }
    }
    unsetenv("LOCKSTEP_DEBUG");
}

TEST_CASE("subgroups have ranks and an order of their own") {
    for (const std::string& backend : backends())
        CHECK(on_ranks(backend, 4, [](ProcessGroup& group) {
                  Lines lines;
                  const auto require = [&](bool good, const char* what) {
                      if (!good) lines.emplace_back(what);
                  };
                  const auto sum_of_ranks = [&](ProcessGroup& members) {
                      const Tensor x = Tensor::full({3}, group.rank());
                      members.all_reduce(x);
                      return x.to_vector<float>()[2];
                  };
                  const auto ends = group.subgroup({3, 0});
                  require((ends != nullptr) == (group.rank() % 3 == 0), "who is in the subgroup");
                  if (ends) {
                      require(ends->size() == 2 && ends->rank() == (group.rank() == 3 ? 0 : 1), "order of the ranks");
                      require(sum_of_ranks(*ends) == 3, "sum in a subgroup");
                      const auto inner = ends->subgroup({1});
                      require((inner != nullptr) == (group.rank() == 0), "who is in the inner one");
                      if (inner) require(sum_of_ranks(*inner) == 0 && inner->size() == 1, "sum of one");
                  }
                  const auto same = group.duplicate();
                  // Not in one order: the group and its duplicate are apart.
                  const Tensor a = Tensor::full({1}, 1), b = Tensor::full({1}, 2);
                  const auto first = (group.rank() < 2 ? group : *same).all_reduce_async(group.rank() < 2 ? a : b);
                  const auto second = (group.rank() < 2 ? *same : group).all_reduce_async(group.rank() < 2 ? b : a);
                  first.wait();
                  second.wait();
                  require(a.item() == 4 && b.item() == 8, "a group and its duplicate");
                  expect(lines, "no ranks", "no ranks", [&] { group.subgroup({}); });
                  expect(lines, "twice", "rank 1 is there twice", [&] { group.subgroup({1, 2, 1}); });
                  expect(lines, "not there", "rank 4 in a group of 4", [&] { group.subgroup({1, 4}); });
                  expect(lines, "different", "different ranks", [&] { group.subgroup({group.rank() / 2}); });
                  require(sum_of_ranks(group) == 6, "the group goes on");
                  return lines;
              }) == "");
}

TEST_CASE("bad input is refused before anything is sent, and the group goes on") {
    for (const std::string& backend : backends())
        CHECK(
            on_ranks(backend, 2, [](ProcessGroup& group) {
                Lines lines;
                const Tensor x = Tensor::zeros({4}), wide = Tensor::zeros({2, 4}),
                             other = Tensor::zeros({4}, DType::i32);
                const Tensor flag = Tensor::zeros({4}, DType::boolean), none;
                const auto refused = [&](const char* part, const std::function<void()>& call) {
                    expect(lines, part, part, call);
                };
                refused("broadcast: root 2 in a group of 2", [&] { group.broadcast(x, 2); });
                refused("reduce: root -1", [&] { group.reduce(x, -1); });
                refused("gather: root 7", [&] { group.gather(x, {}, 7); });
                refused("scatter: root 2", [&] { group.scatter(x, {}, 2); });
                refused("booleans have no mean", [&] { group.all_reduce_async(flag, ReduceOp::mean); });
                refused("booleans have no mean", [&] { group.reduce(flag, 0, ReduceOp::mean); });
                refused("undefined", [&] { group.all_reduce(none); });
                refused("undefined", [&] { group.all_gather(none, x); });
                refused("undefined", [&] { group.all_gather({x, none}, x); });
                refused("undefined", [&] { group.isend(none, 1 - group.rank()); });
                refused("make it (2, 4) or (8,)", [&] { group.all_gather(x, x); });
                refused("make it (2, 4) or (8,)", [&] { group.reduce_scatter(x, x); });
                refused("give both one dtype", [&] { group.all_gather(wide, other); });
                refused("3 tensors in out", [&] { group.all_gather({x, x, x}, x); });
                refused("two of the tensors that it writes share memory", [&] { group.all_gather({x, x}, x); });
                refused("shares memory with in", [&] { group.all_gather(wide, wide.select(0, 1 - group.rank())); });
                refused("shares memory with in", [&] { group.all_to_all(x, x); });
                refused("one place in memory", [&] { group.all_reduce(Tensor::zeros({1}).expand({3})); });
                refused("multiple of the ranks", [&] { group.all_to_all(Tensor::zeros({3}), Tensor::zeros({3})); });
                refused("sum up to the 4 rows of in", [&] { group.all_to_all(Tensor::zeros({4}), x, {2, 2}, {2, 3}); });
                refused("from 0 up", [&] { group.all_to_all(Tensor::zeros({4}), x, {5, -1}, {2, 2}); });
                refused("their rows must have one shape", [&] { group.all_to_all(wide, x, {1, 1}, {2, 2}); });
                refused("belongs to root", [&] { group.scatter(x, {x, x}, 1 - group.rank()); });
                refused("tensors in out", [&] { group.gather(x, {}, group.rank()); });
                refused("give them one shape", [&] { group.scatter(x, {x, wide}, group.rank()); });
                refused("give another rank", [&] { group.send(x, group.rank()); });
                refused("talks to rank 2", [&] { group.irecv(x, 2); });
                refused("tag -1", [&] { group.irecv(x, 1 - group.rank(), -1); });
                const Tensor weight = Tensor::zeros({4}).requires_grad_();
                refused("inside a NoGrad scope", [&] { group.all_reduce(weight); });
                const auto version = weight.version();
                {
                    const NoGrad no_tape;
                    group.broadcast(weight, 0);
                }
                if (weight.version() == version && group.rank() == 1) lines.emplace_back("a broadcast is no write");
                group.barrier();
                return lines;
            }) == "");
    CHECK_THAT(message_of<InvalidArgument>([] { ProcessGroup({.backend = "pigeons"}); }),
               lockstep::test::contains("give one of shm"));
}

TEST_CASE("a backend that cannot be used says why, and what to do") {
    if (!built_in("nccl"))
        CHECK_THAT(message_of<InvalidArgument>([] { ProcessGroup({.backend = "nccl"}); }),
                   lockstep::test::contains("backend nccl: it was not built in; ") &&
                       lockstep::test::contains("configure again, or use another one"));
    else if (device_count(DeviceKind::cuda) == 0)
        CHECK_THAT(message_of<InvalidArgument>([] { ProcessGroup({.backend = "nccl"}); }),
                   lockstep::test::contains("backend nccl: there is no GPU: " + cuda_absence_reason()) &&
                       lockstep::test::contains("use another one"));
    else
        WARN("skipped: there is a GPU");
    CHECK(why_unusable("shm").empty());
}

TEST_CASE("when a rank dies in an operation all others hear of it long before the deadline") {
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
    for (const std::string& backend : backends())
        for (const Operation& operation : operations) {
            const TemporaryDirectory place;
            ForkedRanks ranks(3, [&](int rank) -> Lines {
                ProcessGroup group(options_of(backend, place, rank, 3));
                group.barrier();
                group.barrier();
                if (rank == 1) {
                    std::this_thread::sleep_for(milliseconds(300));
                    lockstep::test::put_bytes(place / "died", std::to_string(now()));
                    ::raise(SIGKILL);
                }
                const std::string message = message_of<CommunicationError>([&] { operation.call(group); });
                const long long failed = now();
                Lines lines;
                for (const std::string& part : {fmt::format("rank {} of 3", rank), operation.name, backend})
                    if (!contains(message, part)) lines.push_back(fmt::format("'{}' lacks '{}'", message, part));
                const std::string again = message_of<CommunicationError>([&] { group.barrier(); });
                if (again.empty()) lines.emplace_back("a dead group does not say so");
                const long long died = std::stoll(lockstep::test::get_bytes(place / "died"));
                // 600 of them pass in hearing who else has not come.
                if (failed - died > 2000) lines.push_back(fmt::format("heard of it after {} ms", failed - died));
                return lines;
            });
            INFO(backend << ": " << operation.name);
            CHECK(joined(ranks.finish(std::chrono::seconds(60))) == "rank 1: ended by signal 9\n");
        }
}

TEST_CASE("whoever does not come is named when the time is over") {
    for (const std::string& backend : backends()) {
        CHECK(on_ranks(backend, 4, [](ProcessGroup& group) {
                  Lines lines;
                  if (group.rank() % 2 == 1) {
                      std::this_thread::sleep_for(milliseconds(1500));
                      return lines;
                  }
                  const long long began = now();
                  const std::string message =
                      message_of<CommunicationError>([&] { group.monitored_barrier(milliseconds(300)); });
                  if (message.empty() || now() - began > 1300) lines.push_back("late or nothing: " + message);
                  if (group.rank() == 0 && !contains(message, "ranks 1, 3 did not come within 300 ms"))
                      lines.push_back(message);
                  return lines;
              }) == "");
        // A receive that nobody answers, whoever it is waited for by.
        for (const bool blocking : {true, false})
            CHECK(on_ranks(
                      backend, 2,
                      [&](ProcessGroup& group) {
                          Lines lines;
                          const long long began = now();
                          if (group.rank() == 1) {
                              std::this_thread::sleep_for(milliseconds(1200));
                              return lines;
                          }
                          const std::string message = message_of<CommunicationError>([&] {
                              const Tensor x = Tensor::zeros({2});
                              blocking ? (void)group.recv(x, 1) : group.irecv(x).wait();
                          });
                          if (!contains(message, "not done within 500 ms") || now() - began > 1500)
                              lines.push_back(fmt::format("after {} ms: {}", now() - began, message));
                          return lines;
                      },
                      milliseconds(500)) == "");
    }
}

TEST_CASE("destroying a group ends what is under way, here and elsewhere, and never hangs") {
    for (const std::string& backend : backends()) {
        const TemporaryDirectory place;
        ForkedRanks ranks(3, [&](int rank) {
            Lines lines;
            auto group = std::make_unique<ProcessGroup>(options_of(backend, place, rank, 3));
            group->barrier();
            std::vector<ProcessGroup::Work> works;
            const long long began = now();
            std::string message;
            if (rank == 0) {
                // Nobody answers any of these; their tensors are gone before they are.
                const ProcessGroup::Work sent = group->isend(Tensor::zeros({3 << 20}), 2);  // rank 2 may keep it aside
                works.push_back(group->irecv(Tensor::zeros({5}), 1));
                works.push_back(group->all_reduce_async(Tensor::zeros({1 << 20})));
                works.push_back(group->barrier_async());
                std::this_thread::sleep_for(milliseconds(100));
                group.reset();
                if (!sent.done()) lines.emplace_back("a message has outlived its group");
                for (const ProcessGroup::Work& work : works)
                    if (!work.done() || message_of<CommunicationError>([&] { work.wait(); }).empty())
                        lines.emplace_back("an operation has outlived its group");
            } else {
                message = message_of<CommunicationError>([&] { group->irecv(Tensor::zeros({1}), 0, 9).wait(); });
                const bool tells =
                    contains(message, backend == "shm" ? "rank 0 has left the group" : "to rank 0 is closed");
                if (!tells) lines.push_back("it says " + message);
                group.reset();
            }
            if (now() - began > 1500) lines.push_back(fmt::format("took {} ms", now() - began));
            return lines;
        });
        CHECK(joined(ranks.finish(std::chrono::seconds(60))) == "");
    }
}

TEST_CASE("a rank that goes between two groups is not waited for until the deadline") {
    for (const std::string& backend : backends())
        for (const bool by_exception : {true, false}) {
            const TemporaryDirectory place;
            // Only the server of a TCP store sees a process die.
            const std::string tcp = fmt::format("tcp://127.0.0.1:{}", port_of(hold_free_port()));
            ForkedRanks ranks(3, [&](int rank) {
                ProcessGroupOptions options = options_of(backend, place, rank, 3);
                if (!by_exception) options.rendezvous.init_method = tcp;
                const long long began = now();
                const std::string message = message_of<Error>([&] {
                    ProcessGroup group(options);
                    group.barrier();
                    if (rank == 1 && by_exception) throw Error("nothing to do with groups");
                    if (rank == 1) ::raise(SIGKILL);
                    (void)group.communicator("second");
                });
                Lines lines;
                if (rank == 1) return lines;
                if (now() - began > 3000) lines.push_back(fmt::format("took {} ms", now() - began));
                if (!contains(message, "rank 1")) lines.push_back("it says " + message);
                return lines;
            });
            INFO(backend << (by_exception ? ", an exception" : ", killed"));
            CHECK(joined(ranks.finish(std::chrono::seconds(60))) ==
                  (by_exception ? "" : "rank 1: ended by signal 9\n"));
        }
}

TEST_CASE("an operation that waits for a rank that has failed ends, whatever the backend sees") {
    for (const std::string& backend : backends())
        CHECK(on_ranks(backend, 2, [](ProcessGroup& group) {
                  Lines lines;
                  group.barrier();
                  if (group.rank() == 1) {
                      note_departure(*group.store(), 1, Departure::failed);
                      std::this_thread::sleep_for(milliseconds(4000));
                      return lines;
                  }
                  const long long began = now();
                  const std::string message = message_of<CommunicationError>([&] { group.barrier(); });
                  if (now() - began > 3500 || !contains(message, "rank 1 has failed"))
                      lines.push_back(fmt::format("after {} ms: {}", now() - began, message));
                  return lines;
              }) == "");
}

TEST_CASE("a group may be destroyed as soon as its work has been waited for") {
    for (const std::string& backend : backends())
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
