// Process groups on tensors, on every backend: all trials run in one start per backend and world size.
#include <fmt/format.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/fixtures/ranks.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/parallel/comm/group_exercise.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

template <class Call>
void expect(Lines& lines, const std::string& what, const std::string& part, Call call) {
    const std::string message = message_of<InvalidArgument>(call);
    if (!contains(message, part) || message.find('\n') != std::string::npos)
        lines.push_back(fmt::format("{}: '{}' does not contain '{}'", what, message, part));
}

void exercise_under_mpirun(int size) {
    if (std::system("command -v mpirun >/dev/null") != 0) {
        WARN("skipped: there is no mpirun");
        return;
    }
    if (!is_built_in("mpi")) WARN("skipped: mpi was not built in");
    if (size > (is_built_in("mpi") ? max_ranks : 2)) return;
    const TemporaryDirectory place;
    const std::string here = place.path().string();
    const lockstep::test::ChildProcess job{
        .command = {"/usr/bin/env", "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                    "--timeout", std::to_string(hang.count()), "-n", std::to_string(size), GROUP_RANK,
                    is_built_in("mpi") ? "mpi" : "shm", here},
        // MPI's files are in the folder as well; MPI leaks memory at exit.
        .environment = {{"TMPDIR", here},
                        {"OMPI_MCA_btl_vader_backing_directory", here},
                        {"ASAN_OPTIONS", "detect_leaks=0"}},
        .output = (place / "output").string()};
    INFO(size << " ranks");
    CHECK(lockstep::test::run_child(job) == 0);
    for (int rank = 0; rank < size; ++rank)
        CHECK(lockstep::test::get_bytes(place / ("rank" + std::to_string(rank))) == "done\n");
}

}  // namespace

TEST_CASE("every operation agrees with plain loops on 1 to 8 ranks") {
    for (const std::string& backend : forkable_backends())
        for (const int size : {1, 2, 3, 4, 8}) {
            if (size > max_ranks) continue;
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

TEST_CASE("every operation under mpirun", "[.mpirun]") {
    for (const int size : {2, 3, 4}) exercise_under_mpirun(size);
}

TEST_CASE("every operation under mpirun, on more ranks", "[.full]") { exercise_under_mpirun(8); }

TEST_CASE("debug mode compares operations and reports no false mismatch") {
    setenv("LOCKSTEP_DEBUG", "detail", 1);
    for (const std::string& backend : forkable_backends()) {
        CHECK(on_ranks(backend, 3, [](ProcessGroup& group) { return exercise_group(group); }) == "");

        struct Mismatch {
            const char* name;
            std::function<void(ProcessGroup&)> call;
            Lines parts;  ///< parts of the message on both ranks
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
             {"make different calls"}},
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

TEST_CASE("subgroups have separate ranks and order") {
    for (const std::string& backend : forkable_backends())
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
                  require((ends != nullptr) == (group.rank() % 3 == 0), "members of the subgroup");
                  if (ends) {
                      require(ends->size() == 2 && ends->rank() == (group.rank() == 3 ? 0 : 1), "order of the ranks");
                      require(sum_of_ranks(*ends) == 3, "sum in a subgroup");
                      const auto inner = ends->subgroup({1});
                      require((inner != nullptr) == (group.rank() == 0), "members of the inner subgroup");
                      if (inner) require(sum_of_ranks(*inner) == 0 && inner->size() == 1, "sum of one");
                  }
                  const auto same = group.duplicate();
                  // In different orders, because the group and its duplicate are independent.
                  const Tensor a = Tensor::full({1}, 1), b = Tensor::full({1}, 2);
                  const auto first = (group.rank() < 2 ? group : *same).all_reduce_async(group.rank() < 2 ? a : b);
                  const auto second = (group.rank() < 2 ? *same : group).all_reduce_async(group.rank() < 2 ? b : a);
                  first.wait();
                  second.wait();
                  require(a.item() == 4 && b.item() == 8, "a group and its duplicate");
                  expect(lines, "no ranks", "no ranks", [&] { group.subgroup({}); });
                  expect(lines, "twice", "rank 1 is repeated", [&] { group.subgroup({1, 2, 1}); });
                  expect(lines, "missing", "rank 4 in a group of 4", [&] { group.subgroup({1, 4}); });
                  expect(lines, "different", "different ranks", [&] { group.subgroup({group.rank() / 2}); });
                  require(sum_of_ranks(group) == 6, "the group stays usable");
                  return lines;
              }) == "");
}

TEST_CASE("bad input is rejected before anything is sent, and the group stays usable") {
    for (const std::string& backend : forkable_backends())
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
                refused("expected (2, 4) or (8,)", [&] { group.all_gather(x, x); });
                refused("expected (2, 4) or (8,)", [&] { group.reduce_scatter(x, x); });
                refused("expected the same dtype", [&] { group.all_gather(wide, other); });
                refused("3 tensors in out", [&] { group.all_gather({x, x, x}, x); });
                refused("two tensors that it writes share memory", [&] { group.all_gather({x, x}, x); });
                refused("shares memory with in", [&] { group.all_gather(wide, wide.select(0, 1 - group.rank())); });
                refused("shares memory with in", [&] { group.all_to_all(x, x); });
                refused("share memory", [&] { group.all_reduce(Tensor::zeros({1}).expand({3})); });
                refused("multiple of the ranks", [&] { group.all_to_all(Tensor::zeros({3}), Tensor::zeros({3})); });
                refused("sum up to the 4 rows of in", [&] { group.all_to_all(Tensor::zeros({4}), x, {2, 2}, {2, 3}); });
                refused("must not be negative", [&] { group.all_to_all(Tensor::zeros({4}), x, {5, -1}, {2, 2}); });
                refused("expected rows of the same shape", [&] { group.all_to_all(wide, x, {1, 1}, {2, 2}); });
                refused("belongs to root", [&] { group.scatter(x, {x, x}, 1 - group.rank()); });
                refused("tensors in out", [&] { group.gather(x, {}, group.rank()); });
                refused("expected the same shape", [&] { group.scatter(x, {x, wide}, group.rank()); });
                refused("expected another rank", [&] { group.send(x, group.rank()); });
                refused("communicates with rank 2", [&] { group.irecv(x, 2); });
                refused("tag -1", [&] { group.irecv(x, 1 - group.rank(), -1); });
                const Tensor weight = Tensor::zeros({4}).requires_grad_();
                refused("inside a NoGrad scope", [&] { group.all_reduce(weight); });
                const auto version = weight.version();
                {
                    const NoGrad no_grad;
                    group.broadcast(weight, 0);
                }
                if (weight.version() == version && group.rank() == 1)
                    lines.emplace_back("a broadcast does not count as a write");
                group.barrier();
                return lines;
            }) == "");
    CHECK_THAT(message_of<InvalidArgument>([] { ProcessGroup({.backend = "pigeons"}); }),
               lockstep::test::contains("expected one of shm"));
}

TEST_CASE("groups accept time limits of any size") {
    const TemporaryDirectory place;
    constexpr auto longest = std::chrono::milliseconds::max();
    ForkedRanks ranks(2, [&](int rank) -> Lines {
        ProcessGroup group({.rendezvous = {.init_method = "file://" + (place / "store").string(),
                                           .rank = rank,
                                           .world_size = 2,
                                           .time_limit = longest},
                            .time_limit = longest});
        group.barrier();
        group.monitored_barrier(longest);
        return group.barrier_async().wait_for(longest) ? Lines{} : Lines{"the barrier is not done"};
    });
    CHECK(joined(ranks.finish()) == "");
}

TEST_CASE("the error about an unusable backend says why and what to do") {
    if (!is_built_in("nccl"))
        CHECK_THAT(message_of<InvalidArgument>([] { ProcessGroup({.backend = "nccl"}); }),
                   lockstep::test::contains("backend nccl: it was not built in; ") &&
                       lockstep::test::contains("configure again, or use another one"));
    else if (device_count(DeviceKind::cuda) == 0)
        CHECK_THAT(message_of<InvalidArgument>([] { ProcessGroup({.backend = "nccl"}); }),
                   lockstep::test::contains("backend nccl: there is no GPU: " + cuda_absence_reason()) &&
                       lockstep::test::contains("use another one"));
    else
        WARN("skipped: there is a GPU");
    CHECK(unusable_reason("shm").empty());
}
