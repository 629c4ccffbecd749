// Loss scaling for training in f16 (torch.amp.GradScaler): backward begins with a multiple of the loss, so that small
// gradients are not lost, and gradients are divided by it again before they are clipped and used. The multiple is found
// as training goes on: it doubles after 2000 good steps, and is halved when a gradient is not finite, where the step is
// skipped.
//
//     ls::GradScaler scaler;
//     model.step(sgd, x, y, loss, {.scaler = &scaler});
//
// or, as in PyTorch, with a wrapper's gathered outputs or a plain module:
//
//     scaler.scale(loss(model.forward(x), y)).backward();
//     scaler.unscale_(sgd);  // before clip_grad_norm_; otherwise step does it
//     scaler.step(sgd);
//     scaler.update();
//     sgd.zero_grad();
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/arena.h"
#include "lockstep/ops/loss_scale.h"
#include "lockstep/ops/optimizer.h"

namespace lockstep {

struct GradScalerOptions {
    double init_scale = 65536;
    double growth_factor = 2;
    double backoff_factor = 0.5;
    std::int64_t growth_interval = 2000;
    bool enabled = true;  ///< false: everything goes as without a scaler

    /// Throws InvalidArgument for numbers that cannot be.
    void check() const;
};

/// It belongs to the model that it is first used with in a step. There the scale lies on every device, and the rule is
/// applied there: all devices and ranks see the same gradients and decide alike, and the host waits for nothing. In the
/// longer form `step` waits to find out whether the gradients are finite, as PyTorch's does. One scaler may be used in
/// both forms in turns. All ranks have scalers with the same options.
class GradScaler {
public:
    /// Throws InvalidArgument for options that cannot be.
    explicit GradScaler(const GradScalerOptions& options = {});
    GradScaler(const GradScaler&) = delete;
    GradScaler& operator=(const GradScaler&) = delete;

    const GradScalerOptions& options() const { return options_; }
    bool is_enabled() const { return options_.enabled; }
    /// The scale of the next step; 1 where the scaler is not enabled. Waits for the steps so far.
    double get_scale();

    /// What a run needs to go on with this scaler, by PyTorch's names: "scale", "growth_factor", "backoff_factor",
    /// "growth_interval" and "_growth_tracker"; nothing where it is not enabled. Waits for the steps so far.
    std::map<std::string, double> state();
    /// Throws InvalidArgument where a number is missing or cannot be, with nothing changed.
    void load_state(const std::map<std::string, double>& state);

    // PyTorch's longer form. Its rules about the order of calls hold: InvalidArgument for a second unscale_ or step of
    // an optimizer before update, for unscale_ after step, and where no parameter has a gradient.

    /// A multiple of the loss, to call backward() on.
    Tensor scale(const Tensor& loss);
    /// Divides the gradients of the optimizer's parameters by the scale. Throws InvalidArgument for those in f16.
    void unscale_(Optimizer& optimizer);
    /// Calls the optimizer's step() unless some gradient is not finite, after unscale_ where that was not called.
    /// Returns whether it did. Waits for the gradients.
    bool step(Optimizer& optimizer);
    /// Sets the scale of the next iteration: by the rule, or to `new_scale`.
    void update(std::optional<double> new_scale = std::nullopt);

    /// For training loops, after each step (Trainer and Runner call it): `skipped` as StepLoss has it. After every 50
    /// steps in a row that were skipped it warns, and throws Error if the scale is 0, from which it never recovers.
    /// PyTorch skips all further steps silently.
    void note_step(bool skipped);
    static constexpr std::int64_t steps_between_looks = 50;

    // For wrappers.

    /// A number that no other scaler of the process has or had: programs are kept by it.
    std::uint64_t id() const { return id_; }
    /// Puts the state on the devices of a model before a step that uses it. Waits where it is not there yet. Throws
    /// InvalidArgument for another model than before.
    void bring_to(const std::shared_ptr<ParameterStore>& store);
    /// Where the state, a LossScale, lies on a device of that model.
    const std::shared_ptr<Buffer>& state_on(Device device) const;

private:
    /// What has happened with an optimizer since the last update().
    struct Progress {
        bool stepped = false;
        Tensor largest;  ///< magnitude of a gradient before it was unscaled, or NaN: f64 scalar
    };

    /// The state on the host is the latest.
    void settle();

    GradScalerOptions options_;
    std::uint64_t id_;
    LossScale state_;
    bool devices_have_it_ = false;    ///< what is on the devices is `state_`, or newer
    bool devices_are_ahead_ = false;  ///< it is newer
    std::weak_ptr<ParameterStore> store_;
    std::vector<std::pair<Device, std::shared_ptr<Buffer>>> on_devices_;
    std::int64_t skipped_in_a_row_ = 0;
    std::map<std::uint64_t, Progress> progress_;  ///< by the optimizer's id
};

}  // namespace lockstep
