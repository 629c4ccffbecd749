// Knowledge of ranks about each other in the log of steps: which arrived last at the collectives, and how long others
// waited.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/comm/group/communicator.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/step_log.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

struct Touched {
    ls::Linear fc{4, 3};
    LOCKSTEP_MEMBERS(fc)
    ls::Tensor forward(const ls::Tensor& x) const { return call_hook(fc(x)); }
};

constexpr int slow_rank = 1, logged_steps = 4;
/// Two before backward, the sum of the gradients, and the distribution of the result.
constexpr std::size_t collectives_of_a_step = 4, sum_of_gradients = 3;
constexpr double delay = 50;  // in milliseconds

/// Values shared between the ranks.
struct Board {
    std::atomic<int> waits{0};                      ///< steps in whose collective the other rank has waited
    std::array<double, 2 * logged_steps> waited{};  ///< by step and rank, for the other one
};

/// Errors of one of two ranks. The slow rank stays in every backward until `delay` after the other one began to wait.
std::vector<std::string> train(int rank, const std::string& store, Board& board) {
    ls::ProcessGroup group({.backend = "shm",
                            .rendezvous = {.init_method = "file://" + store, .rank = rank, .world_size = 2},
                            .time_limit = ls::test::no_limit});
    ls::DistributedDataParallel model(Touched{}, group, ls::Device::cpu(0));
    ls::SGD sgd(model, {.lr = 0.1});
    const ls::Tensor x = ls::Tensor::from(std::vector<float>(24, 1), {6, 4});
    const ls::Tensor y = ls::Tensor::from(std::vector<float>(18, 1), {6, 3});
    model.step(sgd, x, y, ls::mse_loss);
    model.synchronize();
    model.engine().log_steps(logged_steps);
    std::vector<std::string> complaints;
    const auto require = [&](bool good, const std::string& what) {
        if (!good) complaints.push_back(what);
    };
    int begun = 0;  // steps
    kernel_hook().backward = [&](int shard) {
        if (shard != slow_rank) return;
        if (!ls::test::comes_true([&] { return board.waits >= begun; }))
            throw ls::Error("the other rank does not respond");
        std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(delay));
    };
    ls::Communicator& job = *model.engine().job();
    std::uint64_t before = 0;
    if (rank != slow_rank)
        job.set_meanwhile([&] {
            if (job.sequence() == before + sum_of_gradients) board.waits = begun;
        });
    for (int step = 0; step < logged_steps; ++step) {
        before = job.sequence();
        ++begun;
        model.step(sgd, x, y, ls::mse_loss);
        model.synchronize();
        require(job.sequence() == before + collectives_of_a_step, "the number of collectives in a step is wrong");
    }
    const std::vector<ls::LoggedStep> steps = model.engine().step_log();
    job.set_meanwhile({});
    require(steps.size() == logged_steps, "steps are missing");
    double waiting = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const ls::LoggedStep& step = steps[i];
        std::size_t collectives = 0;
        double& waited = board.waited[2 * i + static_cast<std::size_t>(rank)];
        for (const ls::StepSpan& span : step.spans) {
            if (!span.collective) continue;
            require(span.kind == ls::SpanKind::communication, span.name + " is not communication");
            if (collectives < step.arrivals.size()) {
                const ls::Arrival& arrival = step.arrivals[collectives];
                require(arrival.own == span.begin, span.name + " began at another time");
                require(arrival.last >= arrival.own, "a rank arrived after the last one");
                // Events are a little before and after the work that they mark, and hosts see them a little later.
                require(span.end > arrival.last - 2, span.name + " ended before all ranks arrived");
                waited += arrival.last - arrival.own;
                if (collectives + 1 == sum_of_gradients)
                    require(
                        arrival.last_rank == slow_rank && (rank == slow_rank || arrival.last - arrival.own >= delay),
                        fmt::format("rank {} was last, and waited for {} ms", arrival.last_rank,
                                    arrival.last - arrival.own));
            }
            ++collectives;
        }
        require(collectives == collectives_of_a_step && step.arrivals.size() == collectives, "arrivals are missing");
    }
    group.barrier();  // both have written how long they waited
    for (std::size_t i = 0; i < steps.size(); ++i) {
        // A busy machine may delay the other rank longer.
        const double for_slow = board.waited[2 * i], for_other = board.waited[2 * i + 1];
        require(steps[i].slowest_rank == (for_slow > for_other ? slow_rank : 1 - slow_rank), "another rank was named");
        require(std::abs(steps[i].waited_for_slowest - std::max(for_slow, for_other)) < 1e-6, "another time was named");
    }
    for (const ls::StepSplit& split : ls::split_steps(steps)) {
        if (rank == slow_rank)
            require(split.backward >= delay, fmt::format("{} ms of backward", split.backward));
        else
            waiting += split.slowest;
    }
    if (rank != slow_rank) require(waiting >= 3 * delay, fmt::format("{} ms of waiting in 3 steps", waiting));
    return complaints;
}

}  // namespace

TEST_CASE("the slowest rank is named, and the others have waited for it") {
    const ls::test::Shared<Board> board;
    const auto store = std::filesystem::temp_directory_path() / fmt::format("step-log-{}", ::getpid());
    const auto results = [&] {
        ls::test::ForkedRanks ranks(2, [&](int rank) { return train(rank, store.string(), *board); });
        return ranks.finish();
    }();
    std::filesystem::remove(store);
    for (const auto& complaints : results) CHECK(complaints == std::vector<std::string>());
}
