// A small training whose state after every step is known: what tests of checkpoints save, kill and load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/ops/layers.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/random.h"

namespace saved_training {

namespace ls = lockstep;

struct Net {
    ls::Linear first{4, 8}, second{8, 3};
    LOCKSTEP_MEMBERS(first, second)
    ls::Tensor forward(const ls::Tensor& x) { return second(ls::relu(first(x))); }
};

/// Model, optimizer and what trains them: batch i is the same whoever trains it.
class Training {
public:
    explicit Training(std::uint64_t seed)
        : seed_(seed), model_(net(seed), {ls::Device::cpu(0)}, {.shards = 2, .seed = seed}), sgd_(model_, rates) {}

    void step() {
        std::vector<float> x, y;
        for (int i = 0; i < 5 * 4; ++i) x.push_back(number(i));
        for (int i = 0; i < 5 * 3; ++i) y.push_back(number(100 + i));
        model_.step(sgd_, ls::Tensor::from(x, {5, 4}), ls::Tensor::from(y, {5, 3}), ls::mse_loss);
        ++steps_;
    }
    void to(std::uint64_t steps) {
        while (steps_ < steps) step();
    }
    /// Weights, one after another.
    std::vector<float> weights() {
        model_.synchronize();
        std::vector<float> all;
        for (const ls::NamedTensor& named : ls::named_tensors(*model_))
            for (const float value : named.member->tensor().to_vector<float>()) all.push_back(value);
        return all;
    }

    ls::RunState state() const {
        return {.epoch = steps_ / 7,
                .batch = static_cast<std::int64_t>(steps_ % 7),
                .batch_size = 5,
                .steps = steps_,
                .seed = seed_,
                .fields = {{"writer", std::to_string(seed_)}}};
    }
    void save(const std::filesystem::path& path) { ls::save_checkpoint(model_, sgd_, state(), path); }
    /// Goes on where the checkpoint is; its state, if it has one.
    std::optional<ls::RunState> load(const std::filesystem::path& path) {
        auto run = ls::load_checkpoint(model_, sgd_, path);
        if (run) steps_ = run->steps;
        return run;
    }

    std::uint64_t steps() const { return steps_; }
    ls::DataParallel<Net>& model() { return model_; }
    ls::SGD& sgd() { return sgd_; }
    static constexpr ls::SgdOptions rates{.lr = 0.01, .momentum = 0.9};

private:
    static Net net(std::uint64_t seed) {
        ls::manual_seed(seed);
        return Net{};
    }
    float number(int i) const {
        const auto mixed = (static_cast<std::uint64_t>(i) + 31 * steps_ + 7 * seed_) * 2654435761U % 1009;
        return static_cast<float>(mixed) / 1009 - 0.5f;
    }
    std::uint64_t seed_, steps_ = 0;
    ls::DataParallel<Net> model_;
    ls::SGD sgd_;
};

/// The weights after every step of a training that nothing ever interrupted.
class Uninterrupted {
public:
    explicit Uninterrupted(std::uint64_t seed) : training_(seed) { after_.push_back(training_.weights()); }
    const std::vector<float>& after(std::uint64_t steps) {
        while (after_.size() <= steps) {
            training_.step();
            after_.push_back(training_.weights());
        }
        return after_[steps];
    }

private:
    Training training_;
    std::vector<std::vector<float>> after_;
};

}  // namespace saved_training
