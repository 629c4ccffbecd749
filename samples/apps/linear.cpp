// The regression of PyTorch's distributed tutorials: ten inputs, one output, and a linear function to be learned.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/program/strategy.h"
#include "lockstep/samples/apps/program/train.h"

namespace ls = lockstep;

namespace {

constexpr std::int64_t features = 10, rows = 2048;

struct Net {
    ls::Linear linear{features, 1};
    LOCKSTEP_MEMBERS(linear)
    ls::Tensor forward(const ls::Tensor& x) { return linear(x); }  // (N, 10) -> (N, 1)
};

std::optional<program::Stop> train(const program::Options& options, std::chrono::steady_clock::time_point began) {
    ls::manual_seed(options.seed);
    const ls::Tensor x = ls::Tensor::randn({rows, features});
    const ls::Tensor line = ls::Tensor::randn({features, 1});
    const ls::Tensor y = ls::matmul(x, line) + ls::Tensor::randn({rows, 1}) * 0.01 + 0.5;

    return program::with_model(options, Net{}, [&](auto& model) {
        ls::Loader batches(model, ls::TensorDataset(x, y),
                           {.batch_size = options.global_batch_size(model.devices()),
                            .shuffle = true,
                            .seed = options.seed,
                            .workers = options.workers});
        ls::SGD sgd(model, program::sgd_options(options));
        const auto stop = program::train("linear", options, model, batches, ls::mse_loss, {.optimizer = sgd}, began);

        if (stop || options.quiet) return stop;
        const std::vector<float> found = model->linear.weight->template to_vector<float>();
        const std::vector<float> wanted = line.to_vector<float>();
        float error = 0;
        for (std::size_t i = 0; i < wanted.size(); ++i) error = std::max(error, std::abs(found[i] - wanted[i]));
        fmt::print("largest error of a weight: {:.4f}\n", error);
        return stop;
    });
}

}  // namespace

int main(int argc, char** argv) {
    const auto began = std::chrono::steady_clock::now();
    program::Options options;
    return program::run({"linear", "Fit a line in ten dimensions on generated data."}, options, argc, argv,
                        [&] { return train(options, began); });
}
