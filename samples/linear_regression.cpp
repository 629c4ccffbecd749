// Linear regression on all visible devices: fit ten weights and an offset to noisy data.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

namespace ls = lockstep;

struct Net {
    ls::Linear linear{10, 1};
    LOCKSTEP_MEMBERS(linear)
    ls::Tensor forward(const ls::Tensor& x) { return linear(x); }  // (N, 10) -> (N, 1)
};

int main() try {
    ls::manual_seed(1);
    const ls::Tensor x = ls::Tensor::randn({2048, 10}), truth = ls::Tensor::randn({10, 1});
    const ls::Tensor y = ls::matmul(x, truth) + 0.5 + ls::Tensor::randn({2048, 1}) * 0.01;

    ls::DataParallel model(Net{});  // one replica per device
    ls::SGD sgd(model, {.lr = 0.1});
    ls::Loader batches(model, ls::TensorDataset(x, y), {.batch_size = 64, .shuffle = true, .seed = 1});
    for (int epoch = 1; epoch <= 5; ++epoch) {
        std::vector<ls::StepLoss> losses;  // reading a loss waits for its step, so read them after the epoch
        for (auto& [input, target] : batches.epoch(epoch))
            losses.push_back(model.step(sgd, input, target, ls::mse_loss));
        double sum = 0;
        for (const ls::StepLoss& loss : losses) sum += loss.item();
        std::printf("epoch %d: loss %.6f\n", epoch, sum / static_cast<double>(losses.size()));
    }

    const auto weights = model->linear.weight->to_vector<float>(), expected = truth.to_vector<float>();
    float error = std::abs(static_cast<float>((*model->linear.bias)->item()) - 0.5f);
    for (std::size_t i = 0; i < expected.size(); ++i) error = std::max(error, std::abs(weights[i] - expected[i]));
    std::printf("largest error of a weight: %.4f\n", error);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "linear_regression: %s\n", error.what());
    return 1;
}
