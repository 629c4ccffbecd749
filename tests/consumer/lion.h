// An optimizer that the library lacks: Lion (Chen et al., 2023).
#pragma once

#include <lockstep/lockstep.h>

#include <array>
#include <string>
#include <vector>

struct LionOptions {
    double lr = 1e-4;
    std::array<double, 2> betas{0.9, 0.99};
    double weight_decay = 0;
    LOCKSTEP_MEMBERS(lr, betas, weight_decay)
};

class Lion final : public lockstep::CustomOptimizer<LionOptions> {
public:
    using CustomOptimizer::CustomOptimizer;
    const char* name() const override { return "Lion"; }
    std::vector<std::string> states() const override { return {"exp_avg"}; }
    void update(lockstep::UpdateRange& range) const override {
        using lockstep::Tensor;
        const Tensor lr = range.setting("lr"), g = range.gradient(), m = range.state("exp_avg");
        const auto toward_g = [&](const Tensor& beta) { return m * beta + g * (1 - beta); };
        const Tensor decayed = range.parameter() * (1 - lr * range.setting("weight_decay"));
        range.set_parameter(decayed - lr * sign(toward_g(range.setting("betas.0"))));
        range.set_state("exp_avg", toward_g(range.setting("betas.1")));
    }
};
