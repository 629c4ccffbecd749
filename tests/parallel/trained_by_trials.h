// A network of convolutions in training, whose algorithms trials may choose, for tests on CPU devices and on GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/random.h"

namespace lockstep::test {

/// Made alike every time, in four shards.
template <class Net>
struct TrainedByTrials {
    explicit TrainedByTrials(Devices devices, std::optional<ConvAlgorithm> algorithm = ConvAlgorithm::benchmark)
        : model((manual_seed(2), Net{}), std::move(devices), {.shards = 4, .convolution = algorithm}),
          sgd(model, {.lr = 0.01, .momentum = 0.9}) {}

    /// On `rows` images of Net::in (C, H, W), with targets of Net::out.
    void steps(int count, std::int64_t rows = 4) {
        manual_seed(5);
        const auto images = [rows](const std::int64_t(&s)[3]) { return Tensor::randn({rows, s[0], s[1], s[2]}); };
        const Tensor x = images(Net::in), y = images(Net::out);
        for (int i = 0; i < count; ++i) model.step(sgd, x, y, mse_loss);
        model.synchronize();
    }
    Engine& engine() { return model.engine(); }
    std::vector<float> weights() {
        std::vector<float> all;
        for (const NamedTensor& named : named_tensors(*model))
            for (const float value : named.member->tensor().template to_vector<float>()) all.push_back(value);
        return all;
    }

    DataParallel<Net> model;
    SGD sgd;
};

}  // namespace lockstep::test
