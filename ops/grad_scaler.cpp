#include "lockstep/ops/grad_scaler.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/flat_gradients.h"
#include "lockstep/ops/internal/gradient_arithmetic.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/stream.h"

namespace lockstep {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::uint64_t next_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
}

/// As stored by PyTorch.
double as_f32(double scale) { return static_cast<double>(static_cast<float>(scale)); }

/// A multiple of the loss that f32 can represent.
bool is_scale(double value) { return value > 0 && value <= static_cast<double>(std::numeric_limits<float>::max()); }

}  // namespace

void GradScalerOptions::check() const {
    if (!is_scale(init_scale))
        throw InvalidArgument(
            fmt::format("GradScaler: invalid init_scale ({}); expected a finite f32 above 0", init_scale));
    if (!(growth_factor > 1) || std::isinf(growth_factor))
        throw InvalidArgument(
            fmt::format("GradScaler: invalid growth_factor ({}); expected a finite number above 1", growth_factor));
    if (!(backoff_factor > 0 && backoff_factor < 1))
        throw InvalidArgument(fmt::format(
            "GradScaler: invalid backoff_factor ({}); expected a number above 0 and below 1", backoff_factor));
    if (growth_interval < 1)
        throw InvalidArgument(
            fmt::format("GradScaler: invalid growth_interval ({}); expected 1 or more", growth_interval));
}

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options), id_(next_id()) {
    options.check();
    state_.scale = as_f32(options.init_scale);
}

void GradScaler::settle() {
    if (!host_is_stale_) return;
    const std::shared_ptr<ParameterStore> store = store_.lock();
    std::optional<OneThreadAtATime::Use> use;
    if (store) use.emplace(store->one_thread(), "GradScaler");
    const auto& [device, memory] = on_devices_.front();
    Stream& stream = Stream::of(device, StreamRole::commit);
    stream.copy(&state_, Device::host(), memory->data(), device, sizeof state_);
    stream.synchronize();
    host_is_stale_ = false;
}

double GradScaler::get_scale() {
    if (!options_.enabled) return 1;
    settle();
    return state_.scale;
}

std::map<std::string, double> GradScaler::state() {
    if (!options_.enabled) return {};
    settle();
    return {{"scale", state_.scale},
            {"growth_factor", options_.growth_factor},
            {"backoff_factor", options_.backoff_factor},
            {"growth_interval", static_cast<double>(options_.growth_interval)},
            {"_growth_tracker", static_cast<double>(state_.good_steps)}};
}

void GradScaler::load_state(const std::map<std::string, double>& state) {
    if (!options_.enabled) return;
    const auto number = [&](const char* name) {
        const auto found = state.find(name);
        if (found == state.end())
            throw InvalidArgument(fmt::format(
                "GradScaler: the state has no number \"{}\"; expected the state of an enabled GradScaler", name));
        return found->second;
    };
    const auto count = [&](const char* name) {
        const double value = number(name);
        if (!(value >= 0 && value < 9e15 && value == std::floor(value)))
            throw InvalidArgument(
                fmt::format("GradScaler: {} {} in the state is invalid; expected a number of steps", name, value));
        return static_cast<std::int64_t>(value);
    };
    GradScalerOptions options = options_;
    options.growth_factor = number("growth_factor");
    options.backoff_factor = number("backoff_factor");
    options.growth_interval = count("growth_interval");
    options.check();
    const double scale = number("scale");
    // The scale may have been halved down to 0, as in PyTorch.
    if (scale != 0 && !is_scale(scale))
        throw InvalidArgument(
            fmt::format("GradScaler: scale {} in the state is invalid; expected a finite f32 of 0 or more", scale));
    const std::int64_t good_steps = count("_growth_tracker");
    settle();
    options_ = options;
    state_ = {as_f32(scale), good_steps};
    devices_have_state_ = false;
    pending_.clear();
    consecutive_skips_ = 0;
}

Tensor GradScaler::scale(const Tensor& loss) {
    const ApiScope call("GradScaler::scale");
    if (!options_.enabled) return loss;
    return loss * get_scale();
}

void GradScaler::unscale_(Optimizer& optimizer) {
    const ApiScope call("GradScaler::unscale_");
    if (!options_.enabled) return;
    Progress& progress = progress_[optimizer.id()];
    if (progress.stepped) throw InvalidArgument("GradScaler: unscale_() is being called after step().");
    if (progress.largest.defined())
        throw InvalidArgument(
            "GradScaler: unscale_() has already been called on this optimizer since the last update().");
    optimizer.store()->require_members("GradScaler::unscale_");
    warns_ = optimizer.store()->warns;
    const NoGrad no_grad;
    const std::vector<FlatGradient> gradients = flat_gradients(optimizer.parameters());
    if (gradients.empty())
        throw InvalidArgument(
            "GradScaler: No inf checks were recorded for this optimizer: no parameter has a gradient; expected "
            "backward() on a scaled loss");
    for (const FlatGradient& gradient : gradients)
        if (gradient.elements.dtype() == DType::f16)
            throw InvalidArgument(
                "GradScaler: Attempting to unscale FP16 gradients; expected f32 parameters and an Autocast scope");
    const double factor = element::unscale_factor({get_scale(), 0});
    progress.largest = norm_of_gradients(gradients, infinity);
    scale_gradients(gradients, Tensor::full({}, factor, DType::f64, gradients.front().elements.device()));
}

bool GradScaler::step(Optimizer& optimizer) {
    const ApiScope call("GradScaler::step");
    if (!options_.enabled) {
        optimizer.step();
        return true;
    }
    if (progress_[optimizer.id()].stepped)
        throw InvalidArgument("GradScaler: step() has already been called since the last update().");
    if (!progress_[optimizer.id()].largest.defined()) unscale_(optimizer);
    Progress& progress = progress_[optimizer.id()];
    const bool finite = std::isfinite(progress.largest.item());
    if (finite) optimizer.step();
    progress.stepped = true;
    return finite;
}

void GradScaler::update(std::optional<double> new_scale) {
    const ApiScope call("GradScaler::update");
    if (!options_.enabled) return;
    if (new_scale && !is_scale(*new_scale))
        throw InvalidArgument(
            fmt::format("GradScaler: invalid new_scale ({}); expected a finite f32 above 0", *new_scale));
    const auto unscaled = [](const auto& entry) { return entry.second.largest.defined(); };
    if (!new_scale && std::none_of(progress_.begin(), progress_.end(), unscaled))
        throw InvalidArgument(
            "GradScaler: No inf checks were recorded prior to update; expected unscale_ or step of an optimizer (a "
            "wrapper's step updates the scale itself)");
    settle();
    const bool checked = std::any_of(progress_.begin(), progress_.end(), unscaled);
    const bool skipped = std::any_of(progress_.begin(), progress_.end(), [&](const auto& entry) {
        return unscaled(entry) && !std::isfinite(entry.second.largest.item());
    });
    if (new_scale)
        state_.scale = as_f32(*new_scale);
    else
        element::update_loss_scale(state_, skipped, options_.growth_factor, options_.backoff_factor,
                                   options_.growth_interval);
    devices_have_state_ = false;
    progress_.clear();
    if (checked) count(skipped);
}

void GradScaler::begin_step() {
    // All ranks count the same steps here, whichever of them have read losses.
    while (pending_.size() > 1) {
        const auto step = std::move(pending_.front());
        pending_.pop_front();
        if (step->outcome != MeasuredStep::Outcome::refused) count(step->outcome == MeasuredStep::Outcome::skipped);
    }
    host_is_stale_ = true;
}

void GradScaler::count(bool skipped) {
    consecutive_skips_ = skipped ? consecutive_skips_ + 1 : 0;
    if (!skipped || consecutive_skips_ % check_interval != 0) return;
    const double scale = get_scale();
    if (scale == 0)
        throw Error(
            fmt::format("GradScaler: the scale is 0 after {} consecutive skipped steps; expected gradients that are "
                        "finite at some scale",
                        consecutive_skips_));
    if (!warns_) return;
    warn(fmt::format("GradScaler: skipped {} consecutive steps with non-finite gradients; the scale is {}",
                     consecutive_skips_, scale));
}

void GradScaler::move_to(const std::shared_ptr<ParameterStore>& store) {
    const std::shared_ptr<ParameterStore> known = store_.lock();
    if (known && known != store)
        throw InvalidArgument("step: the scaler belongs to another model; expected one GradScaler per model");
    if (!known) {
        settle();
        on_devices_.clear();
        for (const Replica& replica : store->replicas())
            on_devices_.emplace_back(replica.device, Buffer::zeroed(replica.device, sizeof state_, "loss scale"));
        store_ = store;
        warns_ = store->warns;
        pending_.clear();
        devices_have_state_ = false;
    }
    if (!devices_have_state_)
        for (const auto& [device, memory] : on_devices_) {
            Stream& stream = Stream::of(device, StreamRole::commit);
            stream.copy(memory->data(), device, &state_, Device::host(), sizeof state_);
            stream.synchronize();
        }
    devices_have_state_ = host_is_stale_ = true;
}

const std::shared_ptr<Buffer>& GradScaler::state_on(Device device) const {
    return std::find_if(on_devices_.begin(), on_devices_.end(), [&](const auto& on) { return on.first == device; })
        ->second;
}

}  // namespace lockstep
