// A custom optimizer: Signum (Bernstein et al., 2018), which steps in the direction of the momentum's sign.
#include <lockstep/lockstep.h>

#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace ls = lockstep;

struct SignumOptions {
    double lr = 1e-3, momentum = 0.9, weight_decay = 0;
    LOCKSTEP_MEMBERS(lr, momentum, weight_decay)  // saved in checkpoints, changed by schedules
};

class Signum final : public ls::CustomOptimizer<SignumOptions> {
public:
    using CustomOptimizer::CustomOptimizer;
    const char* name() const override { return "Signum"; }
    std::vector<std::string> states() const override { return {"momentum_buffer"}; }  // zero at first

    /// Updates a range of the parameters, as flat tensors. Devices, ranks and checkpoints need no code here.
    void update(ls::UpdateRange& range) const override {
        const ls::Tensor lr = range.setting("lr"), momentum = range.setting("momentum");
        const ls::Tensor buffer = range.state("momentum_buffer") * momentum + range.gradient() * (1 - momentum);
        range.set_state("momentum_buffer", buffer);
        range.set_parameter(range.parameter() * (1 - lr * range.setting("weight_decay")) - lr * ls::sign(buffer));
    }
};

struct Net {
    ls::Linear fc1{2, 32}, fc2{32, 2};
    LOCKSTEP_MEMBERS(fc1, fc2)
    ls::Tensor forward(const ls::Tensor& x) { return fc2(ls::relu(fc1(x))); }  // (N, 2) -> (N, 2)
};

int main() try {
    ls::manual_seed(1);
    const ls::Tensor x = ls::Tensor::randn({1024, 2});
    const ls::Tensor labels = ls::relu(ls::sign(x.select(1, 0) * x.select(1, 1))).to(ls::DType::i64);  // 1: equal signs

    ls::DataParallel model(Net{});
    Signum signum(model, {.lr = 0.01, .weight_decay = 1e-3});
    ls::StepLR schedule(signum, 10, 0.3);
    ls::Loader batches(model, ls::TensorDataset(x, labels), {.batch_size = 64, .shuffle = true, .seed = 1});
    for (int epoch = 1; epoch <= 30; ++epoch) {
        std::optional<ls::StepLoss> loss;
        for (auto& [input, target] : batches.epoch(epoch)) loss = model.step(signum, input, target, ls::cross_entropy);
        schedule.step();
        if (epoch % 10 == 0)
            std::printf("epoch %d: loss %.4f, accuracy %.4f\n", epoch, loss->item(), ls::accuracy(model, batches));
    }
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "custom_optimizer: %s\n", error.what());
    return 1;
}
