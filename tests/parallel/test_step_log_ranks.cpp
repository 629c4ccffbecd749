// What ranks know of each other in the log of steps: who came last to the collectives, and how long others waited.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/step_log.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/comm/forked_ranks.h"
#include "lockstep/tests/parallel/small_net.h"
#include "lockstep/tests/parallel/test_operations.h"

using namespace small_net;

namespace {

struct Touched {
    ls::Linear fc{4, 3};
    LOCKSTEP_MEMBERS(fc)
    ls::Tensor forward(const ls::Tensor& x) const { return test_operations::touch(fc(x)); }
};

constexpr int slow_rank = 1;

/// Complaints of one of two ranks, of which one sleeps 50 ms in every backward.
std::vector<std::string> train(int rank, const std::string& store) {
    ls::ProcessGroup group({.backend = "shm",
                            .rendezvous = {.init_method = "file://" + store, .rank = rank, .world_size = 2},
                            .time_limit = std::chrono::seconds(60)});
    ls::DistributedDataParallel model(Touched{}, group, ls::Device::cpu(0));
    ls::SGD sgd(model, {.lr = 0.1});
    const ls::Tensor x = ls::Tensor::from(std::vector<float>(24, 1), {6, 4});
    const ls::Tensor y = ls::Tensor::from(std::vector<float>(18, 1), {6, 3});
    model.step(sgd, x, y, ls::mse_loss);
    model.engine().log_steps(4);
    test_operations::hook().backward = [](int shard) {
        if (shard == slow_rank) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    };
    for (int step = 0; step < 4; ++step) model.step(sgd, x, y, ls::mse_loss);
    const std::vector<ls::LoggedStep> steps = model.engine().step_log();

    std::vector<std::string> complaints;
    const auto require = [&](bool good, const std::string& what) {
        if (!good) complaints.push_back(what);
    };
    require(steps.size() == 4, "steps are missing");
    int named = 0;
    double waiting = 0;
    for (const ls::LoggedStep& step : steps) {
        std::size_t collectives = 0;
        for (const ls::StepSpan& span : step.spans) {
            if (!span.collective) continue;
            require(span.kind == ls::SpanKind::communication, span.name + " is no communication");
            if (collectives < step.arrivals.size()) {
                const ls::Arrival& arrival = step.arrivals[collectives];
                require(arrival.own == span.begin, span.name + " began at another time");
                require(arrival.last >= arrival.own, "somebody came later than the last one");
                // Events lie a little before and after what they stand for, and hosts see them a little later.
                require(span.end > arrival.last - 2, span.name + " ended before all were there");
            }
            ++collectives;
        }
        require(collectives > 0 && step.arrivals.size() == collectives, "arrivals are missing");
        named += step.slowest_rank == slow_rank && step.waited_for_slowest > 25 ? 1 : 0;
    }
    // A busy machine may hold the other one up for as long, but not in most steps.
    require(named >= 3, fmt::format("the slow rank was named in {} steps of 4", named));
    for (const ls::StepSplit& split : ls::split_steps(steps)) {
        if (rank == slow_rank)
            require(split.backward >= 50, fmt::format("{} ms of backward", split.backward));
        else
            waiting += split.slowest;
    }
    if (rank != slow_rank) require(waiting > 3 * 25, fmt::format("{} ms of waiting in 3 steps", waiting));
    return complaints;
}

}  // namespace

TEST_CASE("the slowest rank is named, and the others have waited for it") {
    const auto store = std::filesystem::temp_directory_path() / fmt::format("step-log-{}", ::getpid());
    const auto results = [&] {
        ls::testing::ForkedRanks ranks(2, [&](int rank) { return train(rank, store.string()); });
        return ranks.finish(std::chrono::seconds(120));
    }();
    std::filesystem::remove(store);
    for (const auto& complaints : results) CHECK(complaints == std::vector<std::string>());
}
