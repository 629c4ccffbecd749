// DistributedDataParallel in ranks with devices of the CUDA stand-in.
#pragma once

#include <string>
#include <vector>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/cuda_standin/ranks.h"

namespace lockstep::test {

using Lines = std::vector<std::string>;
using test::gpus;
using test::Images;
using test::Trained;

inline constexpr std::int64_t rows = 22;

/// A rank in training, with the same model as Trained.
template <class Net>
struct Rank {
    Rank(ProcessGroup& group, EngineOptions options, Device device = Device::cuda(0))
        : model((manual_seed(1), Net{}), group, device, Trained<Net>::with_seed(options)),
          sgd(model, {.lr = 0.01, .momentum = 0.5}) {}
    StepLoss step(const Images& images, std::int64_t first, std::int64_t last) {
        return model.step(sgd, images.batch(first, last), images.targets(first, last), nll_loss, how);
    }
    /// As Trained::run.
    void run(int steps) {
        const Images images(rows * steps);
        for (int i = 0; i < steps; ++i) step(images, i * rows, i * rows + (i + 1 == steps ? 5 : rows));
        model.synchronize();
    }
    DistributedDataParallel<Net> model;
    SGD sgd;
    StepOptions how;
};

template <class Net>
Lines same_bits(ProcessGroup& group, const EngineOptions& options, int steps = 3,
                const CommunicationHook& hook = nullptr, const StepOptions& how = {}) {
    Rank<Net> rank(group, options);
    rank.how = how;
    if (hook) rank.model.register_comm_hook(group, hook);
    rank.run(steps);
    rank.model.engine().verify_replicas();
    Trained<Net> alone(gpus(1), {.shards = options.shards});
    alone.how = how;
    alone.run(steps, rows);
    return test::values_of(rank.model.module()) == alone.values() ? Lines()
                                                                  : Lines{"the weights differ from DataParallel"};
}

/// Message of the CommunicationError that `call` throws.
template <class Call>
std::string lost(Call&& call) {
    try {
        call();
    } catch (const CommunicationError& error) {
        return error.what();
    } catch (const Error& error) {
        return std::string("another error: ") + error.what();
    }
    return "nothing was thrown";
}

}  // namespace lockstep::test
