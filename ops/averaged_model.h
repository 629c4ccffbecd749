// Averages of the weights of a model in training.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/ops/module.h"

namespace lockstep {

/// Options of AveragedModel.
struct AveragingOptions {
    /// Each update replaces the average by decay * average + (1 - decay) * weights. Without it, all updates count
    /// equally (stochastic weight averaging).
    std::optional<double> ema_decay = std::nullopt;
    /// Averages buffers of floats as well. Otherwise, and for integers, buffers are copied.
    bool use_buffers = false;
};

namespace detail {
/// Throws InvalidArgument for a decay outside [0, 1].
void require_averaging(const AveragingOptions& options);
/// Throws InvalidArgument for a negative number.
void require_updates(std::int64_t updates);
/// One update; `before`: the number of earlier ones. Throws InvalidArgument, with nothing changed, if the models differ
/// in names, shapes or dtypes.
void average_tensors(const std::vector<NamedTensor>& averages, const std::vector<NamedTensor>& tensors,
                     const AveragingOptions& options, std::int64_t before);
}  // namespace detail

/// A model whose weights are averages of those of another one (torch.optim.swa_utils.AveragedModel). It is a plain
/// module on the device of the values that it copies: that of the first replica of a wrapped model. Updates wait for no
/// device.
///
///     ls::AveragedModel<Net> average(*model, {.ema_decay = 0.999});
///     for (...) {
///         model.step(...);
///         average.update(*model);
///     }
///     set_training(*average, false);
///     average->forward(images);
///
/// With DDP, all ranks have the same weights, and so the same average. BatchNorm's statistics are those of the last
/// update, unless `use_buffers` averages them.
template <class Net>
class AveragedModel {
public:
    /// Copies `model`, which must be copyable.
    explicit AveragedModel(const Net& model, const AveragingOptions& options = {}) : options_(options), net_(model) {
        detail::require_averaging(options_);
    }

    /// Updates the average with the weights of `model`. The first update copies them.
    void update(Net& model) {
        detail::average_tensors(named_tensors(net_), named_tensors(model), options_, updates_);
        ++updates_;
    }
    /// Number of updates. Set it after loading the weights of a saved average. Throws InvalidArgument for a negative
    /// number.
    std::int64_t updates() const { return updates_; }
    void set_updates(std::int64_t updates) {
        detail::require_updates(updates);
        updates_ = updates;
    }

    Net& operator*() { return net_; }
    const Net& operator*() const { return net_; }
    Net* operator->() { return &net_; }
    const Net* operator->() const { return &net_; }

private:
    AveragingOptions options_;
    Net net_;
    std::int64_t updates_ = 0;
};

}  // namespace lockstep
