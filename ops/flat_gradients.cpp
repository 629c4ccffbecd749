#include "lockstep/ops/internal/flat_gradients.h"

#include "lockstep/runtime/record.h"

namespace lockstep {

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
    std::int64_t grains = 0;
    for (const FlatGradient& gradient : gradients) grains += MeasureGradients::grains(gradient.elements.numel());
    const Tensor measures = Tensor::zeros({grains}, DType::f64, gradients.front().elements.device());
    std::int64_t first = 0;
    for (const FlatGradient& gradient : gradients) {
        const std::int64_t next = first + MeasureGradients::grains(gradient.elements.numel());
        apply_one(MeasureGradients{gradient.range, order}, {gradient.elements, Tensor()},
                  measures.slice(0, first, next));
        first = next;
    }
    return apply_one(CombineMeasures{order}, {measures}, TensorMeta::contiguous(DType::f64, {}));
}

void scale_gradients(const std::vector<FlatGradient>& gradients, const Tensor& factor) {
    for (const FlatGradient& gradient : gradients)
        apply_one(ScaleGradients{gradient.range}, {factor, Tensor()}, gradient.elements);
}

}  // namespace lockstep
