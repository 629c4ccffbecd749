// Training with a GradScaler, for tests within one process and over several.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/grad_scaler.h"
#include "lockstep/tests/parallel/kinked_training.h"
#include "lockstep/tests/parallel/recorded_scales.h"

namespace lockstep::test {

/// What was recorded for gradients of any size, which some bad steps have spoilt.
inline std::vector<RecordedScales> ordinary_scales() {
    std::vector<RecordedScales> ordinary;
    for (const RecordedScales& recorded : recorded_scales())
        if (recorded.gradient == 1) ordinary.push_back(recorded);
    return ordinary;
}

/// What is wrong with training as `recorded` has it; empty: nothing. Bad steps must change nothing at all, good ones
/// something.
template <class Model>
std::string train_as_recorded(Model& model, Optimizer& optimizer, const RecordedScales& recorded, StepOptions how) {
    const Tensor first = kinked_rows(99);
    model.step(optimizer, first, first, mean_of_outputs, how);  // by which the optimizer's settings reach the devices
    GradScaler scaler(recorded.options);
    how.scaler = &scaler;
    auto before = whole_state(model, optimizer);
    for (int i = 0; i < static_cast<int>(recorded.after.size()); ++i) {
        const bool bad = recorded.bad.contains(i);
        const Tensor x = kinked_rows(i, bad);
        const StepLoss loss = model.step(optimizer, x, x, mean_of_outputs, how);
        const std::string step = "step " + std::to_string(i);
        if (loss.skipped() != bad) return step + (bad ? " was not skipped" : " was skipped");
        auto after = whole_state(model, optimizer);
        if ((after == before) != bad) return step + (bad ? " has changed something" : " has changed nothing");
        before = std::move(after);
        const auto& [scale, tracker] = recorded.after[static_cast<std::size_t>(i)];
        if (scaler.get_scale() != scale)
            return step + " leaves scale " + std::to_string(scaler.get_scale()) + ", not " + std::to_string(scale);
        if (scaler.state().at("_growth_tracker") != static_cast<double>(tracker)) return step + ": the growth tracker";
    }
    return "";
}

}  // namespace lockstep::test
