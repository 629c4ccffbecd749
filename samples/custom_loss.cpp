// A custom loss: pseudo-Huber, which is less sensitive to outliers than the squared error.
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdio>
#include <exception>

namespace ls = lockstep;

struct Line {
    ls::Linear linear{1, 1};
    LOCKSTEP_MEMBERS(linear)
    ls::Tensor forward(const ls::Tensor& x) { return linear(x); }  // (N, 1) -> (N, 1)
};

/// mean_loss takes the loss of every element and divides by the number of elements in the whole batch, not in a shard.
/// Any callable works. Its members, and by-value captures of a lambda, may change from step to step.
struct PseudoHuber {
    double delta = 1;
    ls::Loss operator()(const ls::Tensor& output, const ls::Tensor& target) const {
        return ls::mean_loss(ls::sqrt(ls::square((output - target) / delta) + 1) * (delta * delta));
    }
};

/// Fits y = 2 x + 1 and returns the error of the slope.
template <class LossFunction>
double fit(const ls::Tensor& x, const ls::Tensor& y, const LossFunction& loss) {
    ls::DataParallel model(Line{});
    ls::SGD sgd(model, {.lr = 0.05, .momentum = 0.9});
    ls::Loader batches(model, ls::TensorDataset(x, y), {.batch_size = 64, .shuffle = true, .seed = 1});
    for (int epoch = 0; epoch < 20; ++epoch)
        for (auto& [input, target] : batches.epoch(epoch)) model.step(sgd, input, target, loss);
    model.synchronize();
    return std::abs(model->linear.weight->item() - 2);
}

int main() try {
    ls::manual_seed(1);
    const ls::Tensor x = ls::Tensor::rand({512, 1});
    ls::Tensor y = x * 2 + 1 + ls::Tensor::randn({512, 1}) * 0.01;
    for (int i = 0; i < 512; ++i)  // a tenth of the targets above x = 0.5 are outliers
        if (i % 10 == 0 && x.data<const float>()[i] > 0.5f) y.data<float>()[i] += 10;

    std::printf("error of the slope with squared error: %.4f\n", fit(x, y, ls::mse_loss));
    std::printf("error of the slope with pseudo-Huber: %.4f\n", fit(x, y, PseudoHuber{.delta = 0.1}));
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "custom_loss: %s\n", error.what());
    return 1;
}
