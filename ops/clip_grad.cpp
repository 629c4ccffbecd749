#include "lockstep/ops/clip_grad.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

#include "lockstep/ops/internal/gradient_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/public_call.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

void ClipGradNorm::check() const {
    if (!(max_norm >= 0))
        throw InvalidArgument(fmt::format("clip_grad_norm_: max_norm {} must not be negative", max_norm));
    if (!(norm_type > 0))
        throw InvalidArgument(fmt::format("clip_grad_norm_: norm_type {} must be above 0, or infinity", norm_type));
}

void ClipGradValue::check() const {
    if (!(clip_value >= 0))
        throw InvalidArgument(fmt::format("clip_grad_value_: clip_value {} must not be negative", clip_value));
}

namespace {

/// A gradient with its elements one after another, which is what it becomes where it was not.
struct FlatGradient {
    Tensor elements;
    GradientRange range;
};

std::vector<FlatGradient> flat_gradients(const std::vector<Tensor>& parameters) {
    std::vector<FlatGradient> gradients;
    for (const Tensor& parameter : parameters) {
        Tensor gradient = parameter.grad();
        if (!gradient.defined() || gradient.numel() == 0) continue;
        if (!gradient.is_contiguous()) {
            gradient = gradient.contiguous();
            parameter.set_grad(gradient);
        }
        const Tensor flat = gradient.reshape({gradient.numel()});
        gradients.push_back({flat, {.range = {.end = flat.numel(), .last = 1}}});
    }
    return gradients;
}

/// The measures of all gradients in their order, on the device of the first. Each device measures what lies there, and
/// sends it in one piece.
Tensor measured(const std::vector<FlatGradient>& gradients, double norm_type) {
    std::map<Device, std::int64_t> grains;
    std::int64_t all_grains = 0;
    const auto grains_of = [](const FlatGradient& gradient) {
        return MeasureGradients::grains(gradient.elements.numel());
    };
    for (const FlatGradient& gradient : gradients) {
        grains[gradient.elements.device()] += grains_of(gradient);
        all_grains += grains_of(gradient);
    }
    std::map<Device, Tensor> measures;
    for (const auto& [device, count] : grains) measures[device] = Tensor::zeros({count}, DType::f64, device);
    std::map<Device, std::int64_t> next;
    for (const FlatGradient& gradient : gradients) {
        const Device device = gradient.elements.device();
        const std::int64_t first = next[device];
        next[device] += grains_of(gradient);
        apply_one(MeasureGradients{gradient.range, norm_type}, {gradient.elements, Tensor()},
                  measures[device].slice(0, first, next[device]));
    }
    const Device home = gradients.front().elements.device();
    if (measures.size() == 1) return measures[home];
    for (auto& [device, values] : measures) values = values.to(home);
    const Tensor all = Tensor::zeros({all_grains}, DType::f64, home);
    next.clear();
    std::int64_t first = 0;
    for (const FlatGradient& gradient : gradients) {
        const Device device = gradient.elements.device();
        const std::int64_t count = grains_of(gradient);
        all.slice(0, first, first + count).copy_(measures[device].slice(0, next[device], next[device] + count));
        first += count;
        next[device] += count;
    }
    return all;
}

}  // namespace

Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, const ClipGradNorm& clip) {
    const PublicCall call("clip_grad_norm_");
    clip.check();
    const NoGrad no_grad;
    const std::vector<FlatGradient> gradients = flat_gradients(parameters);
    if (gradients.empty()) return Tensor::zeros({}, DType::f64);
    const Device device = gradients.front().elements.device();
    const TensorMeta scalar = TensorMeta::contiguous(DType::f64, {});
    const Tensor norm = apply_one(CombineMeasures{clip.norm_type}, {measured(gradients, clip.norm_type)}, scalar);
    if (clip.error_if_nonfinite && !std::isfinite(norm.item()))
        throw InvalidArgument(
            fmt::format("The total norm of order {} for gradients from `parameters` is non-finite, so it cannot be "
                        "clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
                        "`error_if_nonfinite=False`",
                        clip.norm_type));
    std::map<Device, Tensor> coefficients{{device, apply_one(ClipCoefficient{clip.max_norm}, {norm}, scalar)}};
    for (const FlatGradient& gradient : gradients) {
        Tensor& coefficient = coefficients[gradient.elements.device()];
        if (!coefficient.defined()) coefficient = coefficients.at(device).to(gradient.elements.device());
        apply_one(ScaleGradients{gradient.range}, {coefficient, Tensor()}, gradient.elements);
    }
    return norm;
}

void clip_grad_value_(const std::vector<Tensor>& parameters, const ClipGradValue& clip) {
    const PublicCall call("clip_grad_value_");
    clip.check();
    const NoGrad no_grad;
    for (const FlatGradient& gradient : flat_gradients(parameters))
        apply_one(ClampGradients{gradient.range, clip.clip_value}, {Tensor()}, gradient.elements);
}

Tensor clip_grad_norm_(const Optimizer& optimizer, const ClipGradNorm& clip) {
    return clip_grad_norm_(optimizer.parameters(clip.group), clip);
}

void clip_grad_value_(const Optimizer& optimizer, const ClipGradValue& clip) {
    clip_grad_value_(optimizer.parameters(clip.group), clip);
}

}  // namespace lockstep
