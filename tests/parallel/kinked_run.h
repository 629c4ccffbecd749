// A run of the kinked network in one process, whose steps may be spoiled.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tests/parallel/all_optimizers.h"
#include "lockstep/tests/parallel/kinked_training.h"
#include "lockstep/tests/parallel/small_net.h"

namespace lockstep::test {

/// Made alike every time; in buckets of a few parameters.
struct KinkedRun {
    using Model = DataParallel<Kinked>;
    Model model;
    std::unique_ptr<Optimizer> optimizer;
    StepOptions how;

    KinkedRun(const NamedOptimizer<Model>& named, const StepOptions& options,
              ReductionMode reduction = ReductionMode::slice_wise, int devices = 3)
        : model(seeded_kinked(), small_net::devices(devices),
                {.shards = 4, .reduction = reduction, .seed = 5, .bucket_bytes = 256}),
          optimizer(named.make(model)),
          how(options) {}

    StepLoss step(int number, bool spoiled = false) {
        const Tensor x = kinked_rows(number, spoiled);
        return model.step(*optimizer, x, x, mean_of_outputs, how);
    }
    std::vector<std::string> state() { return whole_state(model, *optimizer); }
};

}  // namespace lockstep::test
