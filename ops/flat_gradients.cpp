#include "lockstep/ops/internal/flat_gradients.h"

#include <map>

#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

std::int64_t grains_of(const FlatGradient& gradient) { return MeasureGradients::grains(gradient.elements.numel()); }

/// The measures of all gradients in order, on the device of the first one. Each device measures its gradients and sends
/// the results as one piece.
Tensor measured(const std::vector<FlatGradient>& gradients, double order) {
    std::map<Device, std::int64_t> grains;
    std::int64_t all_grains = 0;
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
        apply_one(MeasureGradients{gradient.range, order}, {gradient.elements, Tensor()},
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

Tensor norm_of_gradients(const std::vector<FlatGradient>& gradients, double order) {
    if (gradients.empty()) return Tensor::zeros({}, DType::f64);
    return apply_one(CombineMeasures{order}, {measured(gradients, order)}, TensorMeta::contiguous(DType::f64, {}));
}

void scale_gradients(const std::vector<FlatGradient>& gradients, const Tensor& factor) {
    std::map<Device, Tensor> factors{{factor.device(), factor}};
    for (const FlatGradient& gradient : gradients) {
        const Device device = gradient.elements.device();
        Tensor& here = factors[device];
        if (!here.defined()) here = factor.to(device);
        apply_one(ScaleGradients{gradient.range}, {here, Tensor()}, gradient.elements);
    }
}

}  // namespace lockstep
