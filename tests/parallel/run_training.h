// What tests of Runner train, and hooks of theirs.
#pragma once

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/runner.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/parallel/file_fixture.h"

namespace run_training {

using namespace lockstep;

struct Net {
    Linear fc1{6, 8}, fc2{8, 2};
    Dropout drop{0.25};
    LOCKSTEP_MEMBERS(fc1, fc2, drop)
    Tensor forward(const Tensor& x) { return fc2(drop(relu(fc1(x)))); }
};

constexpr std::int64_t batches = 5;

inline TensorDataset<2> rows() {
    manual_seed(3);
    return TensorDataset(Tensor::randn({4 * batches, 6}), Tensor::randn({4 * batches, 2}));
}

/// A model with all that trains it.
template <class Model>
struct Training {
    template <class... Arguments>
    explicit Training(Arguments&&... arguments)
        : model((manual_seed(1), Net{}), std::forward<Arguments>(arguments)..., EngineOptions{.shards = 2}),
          sgd(model, {.lr = 0.05, .momentum = 0.5}),
          loader(model, rows(), {.batch_size = 4, .shuffle = true, .seed = 2}) {}
    auto runner(const RunnerOptions& options) { return Runner(model, sgd, loader, mse_loss, options); }
    std::vector<float> weights() {
        model.synchronize();
        return model->fc1.weight->template to_vector<float>();
    }
    Model model;
    SGD sgd;
    Loader<TensorDataset<2>> loader;
};
struct Alone : Training<DataParallel<Net>> {
    Alone() : Training(Devices({Device::cpu(0)})) {}
};

/// Ends the run between steps, after so many.
struct EndAt : RunHook {
    explicit EndAt(std::int64_t step) : step_(step) {}
    std::optional<std::int64_t> next_pause(const Run& run) const override {
        return static_cast<std::int64_t>(run.state().steps) < step_ ? std::optional(step_) : std::nullopt;
    }
    void at_pause(Run& run) override {
        if (static_cast<std::int64_t>(run.state().steps) == step_) run.end();
    }

private:
    std::int64_t step_;
};

/// A signal comes while the run is under way.
struct RaiseAt : RunHook {
    explicit RaiseAt(std::int64_t step) : step_(step) {}
    void after_step(Run&, const StepReport& step) override {
        if (step.step == step_) ::raise(SIGTERM);
    }

private:
    std::int64_t step_;
};

inline std::vector<std::string> files_in(const std::filesystem::path& directory) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

}  // namespace run_training
