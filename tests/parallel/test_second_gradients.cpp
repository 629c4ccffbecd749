// grad() in forward: networks whose losses contain gradients have the gradients of a plain module, and the same bits on
// any number of devices.
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/once_differentiable.h"

using namespace lockstep;
using lockstep::test::message_of;

namespace {

/// A critic whose output is its score and, for each row, the square of the slope's distance from 1 (Gulrajani et al.
/// 2017).
struct Critic {
    Conv2d conv{1, 4, 3, {.padding = 1}};
    Linear fc{4 * 4 * 4, 1};
    LOCKSTEP_MEMBERS(conv, fc)

    std::vector<Tensor> weights() const {
        return {conv.weight->detach(), conv.bias.value()->detach(), fc.weight->detach(), fc.bias.value()->detach()};
    }
    std::tuple<Tensor, Tensor> forward(const Tensor& images) {
        const Tensor x = images.detach().requires_grad_();
        const Tensor score = fc(tanh(conv(x)).flatten(1));
        const Tensor slope = grad({sum(score)}, {x}, {}, {.create_graph = true})[0];
        return {score, square(norm(slope.flatten(1), 2, 1) - 1)};
    }
};

Loss penalised(const std::tuple<Tensor, Tensor>& output, const Tensor& target) {
    const auto& [score, penalty] = output;
    return mean_loss(score * target) + 10 * mean_loss(penalty);
}

struct Field {
    Linear a{1, 8}, b{8, 1};
    LOCKSTEP_MEMBERS(a, b)
    std::vector<Tensor> weights() const {
        return {a.weight->detach(), a.bias.value()->detach(), b.weight->detach(), b.bias.value()->detach()};
    }
    Tensor forward(const Tensor& given) {  // the residual of u'' = -u
        const Tensor x = given.detach().requires_grad_();
        const Tensor u = b(tanh(a(x)));
        const Tensor first = grad({sum(u)}, {x}, {}, {.create_graph = true})[0];
        return grad({sum(first)}, {x}, {}, {.create_graph = true})[0] + u;
    }
};

struct Tripled {
    Conv2d conv{1, 2, 3, {.padding = 1}};
    LOCKSTEP_MEMBERS(conv)
    std::vector<Tensor> weights() const { return {conv.weight->detach(), conv.bias.value()->detach()}; }
    Tensor forward(const Tensor& images) {
        const Tensor x = images.detach().requires_grad_();
        return grad({sum(test::once_differentiable(conv(x)))}, {x}, {}, {.create_graph = true})[0];
    }
};

/// A penalty on the gradient of a network with pooling and batch normalisation.
template <class Norm>
struct PooledCritic {
    Conv2d conv{1, 3, 3, {.padding = 1}};
    Norm norm{3};
    Linear score{12, 1};
    LOCKSTEP_MEMBERS(conv, norm, score)
    std::vector<Tensor> weights() const {
        return {conv.weight->detach(), conv.bias.value()->detach(), norm.weight.value()->detach(),
                score.weight->detach()};
    }
    Tensor forward(const Tensor& images) {
        const Tensor x = images.detach().requires_grad_();
        const Tensor y = score(max_pool2d(tanh(norm(conv(x))), 2).flatten(1));
        const Tensor slope = grad({sum(y)}, {x}, {}, {.create_graph = true})[0];
        return y + sum(square(slope), {1, 2, 3}).unsqueeze(1);
    }
};

template <class Net>
std::vector<std::vector<float>> weights_of(Net& net) {
    std::vector<std::vector<float>> all;
    for (const Tensor& weight : net.weights()) all.push_back(weight.to_vector<float>());
    return all;
}

/// The weights after two steps from the same weights on `devices` devices, with four shards.
template <class Net, class Loss>
std::vector<std::vector<float>> trained(const Net& net, int devices, const Tensor& x, const Tensor& t,
                                        const Loss& loss) {
    DataParallel<Net> model(net, test::cpu_devices(devices), {.shards = 4});
    SGD sgd(model, {.lr = 0.05});
    for (int step = 0; step < 2; ++step) model.step(sgd, x, t, loss);
    return weights_of(*model);
}

/// The same with a plain module.
template <class Net, class Loss>
std::vector<std::vector<float>> trained_plainly(Net net, const Tensor& x, const Tensor& t, const Loss& loss) {
    SGD sgd(net, {.lr = 0.05});
    for (int step = 0; step < 2; ++step) {
        sgd.zero_grad();
        loss(net.forward(x), t).value().backward();
        sgd.step();
    }
    return weights_of(net);
}

template <class Net, class Loss>
void check_training(const Net& net, const Tensor& x, const Tensor& t, const Loss& loss) {
    const auto one = trained(net, 1, x, t, loss), plain = trained_plainly(net, x, t, loss);
    for (const int devices : {2, 3}) CHECK(trained(net, devices, x, t, loss) == one);
    REQUIRE(one.size() == plain.size());
    for (std::size_t i = 0; i < one.size(); ++i)
        for (std::size_t k = 0; k < one[i].size(); ++k) CHECK(one[i][k] == Approx(plain[i][k]).margin(2e-6));
}

}  // namespace

TEST_CASE("a gradient penalty in forward") {
    manual_seed(8);
    const Tensor x = Tensor::randn({7, 1, 4, 4}), t = Tensor::randn({7, 1});
    check_training(Critic{}, x, t, penalised);
}

TEST_CASE("a differential equation's residual in forward") {
    manual_seed(9);
    const Tensor x = Tensor::rand({9, 1}) * 3, t = Tensor::zeros({9, 1});
    check_training(Field{}, x, t, mse_loss);
}

TEST_CASE("a gradient penalty through pooling and batch normalisation") {
    manual_seed(10);
    const Tensor x = Tensor::randn({8, 1, 4, 4}), t = Tensor::randn({8, 1});
    // Statistics of the whole batch: as one plain module.
    check_training(PooledCritic<SyncBatchNorm>{}, x, t, mse_loss);
    const PooledCritic<BatchNorm2d> by_shards;
    const auto one = trained(by_shards, 1, x, t, mse_loss);
    for (const int devices : {2, 4}) CHECK(trained(by_shards, devices, x, t, mse_loss) == one);
}

TEST_CASE("a function without second derivatives in forward is refused before anything runs") {
    DataParallel<Tripled> model(Tripled{}, test::cpu_devices(2));
    SGD sgd(model, {.lr = 0.05});
    const auto before = weights_of(*model);
    CHECK(message_of<InvalidArgument>([&] {
              model.step(sgd, Tensor::ones({4, 1, 4, 4}), Tensor::zeros({4, 1, 4, 4}), mse_loss);
          }).find("once_differentiable has no second derivative") != std::string::npos);
    CHECK(weights_of(*model) == before);
}
