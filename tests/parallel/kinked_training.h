// A network whose gradients are not finite, at a finite loss, where a row of the batch is 0, and all that a step of it
// may change.
#pragma once

#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/reduce/arena_cut.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/stream.h"

namespace lockstep::test {

/// (N, 6) -> (N, 3), with running statistics and masks that depend on the number of the step.
struct Kinked {
    Linear first{6, 5}, second{5, 3}, kink{6, 3, false};
    BatchNorm2d norm{5};
    Dropout dropout{0.5};
    LOCKSTEP_MEMBERS(first, norm, second, kink, dropout)

    Tensor forward(const Tensor& x) {
        const Tensor h = flatten(norm(first(x).reshape({x.size(0), 5, 1, 1})), 1);
        return second(dropout(relu(h))) + sqrt(square(kink(x)));
    }
};

inline Kinked seeded_kinked() {
    manual_seed(3);
    return {};
}

/// 16 rows; in a spoiled one row 7 is 0.
inline Tensor kinked_rows(int step, bool spoiled = false) {
    manual_seed(static_cast<std::uint64_t>(20 + step));
    Tensor x = Tensor::randn({16, 6});
    if (spoiled) x.select(0, 7).zero_();
    return x;
}

inline Loss mean_of_outputs(const Tensor& output, const Tensor&) { return mean_loss(output); }

/// The bytes of what outlives a step, on every CPU device of this process: weights, running statistics, the optimizer's
/// state with its counts and settings; and how many steps were committed.
template <class Model>
std::vector<std::string> whole_state(Model& model, Optimizer& optimizer) {
    Engine& engine = model.engine();
    engine.synchronize();  // of device 0; what others copy from it may still be under way
    for (int d = 0; d < engine.devices().size(); ++d)
        for (const StreamRole role : {StreamRole::compute, StreamRole::commit})
            Stream::of(engine.devices()[d], role).synchronize();
    std::vector<std::string> all{std::to_string(engine.steps_done())};
    const auto add = [&](const std::vector<std::shared_ptr<Buffer>>& buffers) {
        for (const auto& buffer : buffers) all.emplace_back(static_cast<const char*>(buffer->data()), buffer->bytes());
    };
    const ArenaCut& cut = engine.cut();
    for (int d = 0; d < engine.devices().size(); ++d) {
        const Replica& replica = engine.store()->replicas()[static_cast<std::size_t>(d)];
        add(replica.parameters);
        add(replica.buffers);
        if (d >= cut.updating()) continue;
        const OptimizerState& state = optimizer.state_on(engine.devices()[d], cut.state_elements(DeviceIndex(d)));
        add(state.rows);
        for (const auto& [name, elements] : state.elements) add(elements);
    }
    return all;
}

}  // namespace lockstep::test
