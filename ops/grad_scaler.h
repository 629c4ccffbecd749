// Loss scaling for training in f16 (torch.amp.GradScaler). Backward starts from a multiple of the loss, so that small
// gradients do not underflow. Gradients are divided by it before they are clipped and used. The scale adapts during
// training: it doubles after 2000 good steps. If a gradient is not finite, it is halved and the step is skipped.
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
#include <deque>
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

struct MeasuredStep;

/// Options of torch.amp.GradScaler, with its defaults.
struct GradScalerOptions {
    double init_scale = 65536;
    double growth_factor = 2;
    double backoff_factor = 0.5;
    std::int64_t growth_interval = 2000;
    bool enabled = true;  ///< false: behaves as if there were no scaler

    /// Throws InvalidArgument for invalid numbers.
    void check() const;
};

/// Bound to the model that it is first used with in a step. Each device then stores the scale and applies the rule. All
/// devices and ranks see the same gradients and make the same decision, and the host does not wait. In the manual form
/// `step` waits to find out whether the gradients are finite, as in PyTorch. The two forms may be mixed. The scalers of
/// all ranks must have the same options.
///
/// After every 50 consecutive skipped steps there is a warning, on rank 0 of a job. If the scale is 0 by then, from
/// which it never recovers, the wrapper's `step` or `update` throws Error on all ranks. PyTorch skips all further steps
/// silently.
class GradScaler {
public:
    /// Throws InvalidArgument for invalid options.
    explicit GradScaler(const GradScalerOptions& options = {});
    GradScaler(const GradScaler&) = delete;
    GradScaler& operator=(const GradScaler&) = delete;

    const GradScalerOptions& options() const { return options_; }
    bool is_enabled() const { return options_.enabled; }
    /// The scale of the next step; 1 if the scaler is disabled. Waits for the steps so far.
    double get_scale();

    /// State for resuming a run, by PyTorch's names: "scale", "growth_factor", "backoff_factor", "growth_interval" and
    /// "_growth_tracker"; empty if the scaler is disabled. Waits for the steps so far.
    std::map<std::string, double> state();
    /// Throws InvalidArgument if a number is missing or invalid; nothing is changed then.
    void load_state(const std::map<std::string, double>& state);

    // PyTorch's manual form, with its rules about the order of calls. Throws InvalidArgument for a second unscale_ or
    // step of an optimizer before update, for unscale_ after step, and if no parameter has a gradient.

    /// Returns a multiple of the loss; call backward() on it.
    Tensor scale(const Tensor& loss);
    /// Divides the gradients of the optimizer's parameters by the scale. Throws InvalidArgument for f16 gradients.
    void unscale_(Optimizer& optimizer);
    /// Calls unscale_ unless that was done, then the optimizer's step() unless some gradient is not finite. Returns
    /// whether step() was called. Waits for the gradients.
    bool step(Optimizer& optimizer);
    /// Sets the scale of the next iteration: by the rule, or to `new_scale`. Throws Error, with the scale set, if the
    /// scale is 0 after every 50th consecutive skipped step.
    void update(std::optional<double> new_scale = std::nullopt);

    // For wrappers.

    /// Id that is unique among all scalers of the process, used in program keys.
    std::uint64_t id() const { return id_; }
    /// Copies the state to the devices of a model before a step that uses it, and waits unless the devices already have
    /// it. Throws InvalidArgument for a different model than before.
    void move_to(const std::shared_ptr<ParameterStore>& store);
    /// The state, a LossScale, on a device of that model.
    const std::shared_ptr<Buffer>& state_on(Device device) const;
    /// Called before a step, when at most one step is in flight: counts the skipped ones among the finished steps.
    /// Throws Error as described above.
    void begin_step();
    /// Called after the step has begun; its outcome will be written to `step`.
    void follow(std::shared_ptr<const MeasuredStep> step) { pending_.push_back(std::move(step)); }

private:
    /// Calls made for an optimizer since the last update().
    struct Progress {
        bool stepped = false;
        Tensor largest;  ///< largest magnitude of a gradient before unscaling, or NaN: f64 scalar
    };

    static constexpr std::int64_t check_interval = 50;

    /// Updates the state on the host to the latest.
    void settle();
    /// Counts a step that was taken or skipped.
    void count(bool skipped);

    GradScalerOptions options_;
    std::uint64_t id_;
    LossScale state_;
    bool devices_have_state_ = false;  ///< the devices have `state_`, or a newer state
    bool host_is_stale_ = false;       ///< the devices have a newer state
    std::weak_ptr<ParameterStore> store_;
    std::vector<std::pair<Device, std::shared_ptr<Buffer>>> on_devices_;
    std::deque<std::shared_ptr<const MeasuredStep>> pending_;  ///< the wrapper's steps that have not been counted
    std::int64_t consecutive_skips_ = 0;
    bool warns_ = true;                           ///< as ParameterStore::warns
    std::map<std::uint64_t, Progress> progress_;  ///< by the optimizer's id
};

}  // namespace lockstep
