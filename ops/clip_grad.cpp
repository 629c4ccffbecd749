#include "lockstep/ops/clip_grad.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "lockstep/ops/internal/flat_gradients.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

void ClipGradNorm::check() const {
    if (!(max_norm >= 0))
        throw InvalidArgument(fmt::format("clip_grad_norm_: invalid max_norm ({}); expected 0 or more", max_norm));
    if (!(norm_type > 0))
        throw InvalidArgument(
            fmt::format("clip_grad_norm_: invalid norm_type ({}); expected a number above 0, or infinity", norm_type));
}

void ClipGradValue::check() const {
    if (!(clip_value >= 0))
        throw InvalidArgument(fmt::format("clip_grad_value_: invalid clip_value ({}); expected 0 or more", clip_value));
}

Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, const ClipGradNorm& clip) {
    const ApiScope call("clip_grad_norm_");
    clip.check();
    const NoGrad no_grad;
    const std::vector<FlatGradient> gradients = flat_gradients(parameters);
    const Tensor norm = norm_of_gradients(gradients, clip.norm_type);
    if (gradients.empty()) return norm;
    if (clip.error_if_nonfinite && !std::isfinite(norm.item()))
        throw InvalidArgument(
            fmt::format("clip_grad_norm_: the norm of order {} is not finite; expected finite gradients, or "
                        "error_if_nonfinite = false",
                        clip.norm_type));
    scale_gradients(gradients,
                    apply_one(ClipCoefficient{clip.max_norm}, {norm}, TensorMeta::contiguous(DType::f64, {})));
    return norm;
}

void clip_grad_value_(const std::vector<Tensor>& parameters, const ClipGradValue& clip) {
    const ApiScope call("clip_grad_value_");
    clip.check();
    const NoGrad no_grad;
    for (const FlatGradient& gradient : flat_gradients(parameters))
        apply_one(ClampGradients{gradient.range, clip.clip_value}, {Tensor()}, gradient.elements);
}

std::vector<Tensor> detail::parameters_among(const std::vector<NamedTensor>& tensors) {
    if (const auto store = ParameterStore::find(tensors)) store->require_members("clip_grad");
    std::vector<Tensor> parameters;
    std::set<const void*> seen;
    for (const NamedTensor& named : tensors)
        if (named.is_parameter && seen.insert(named.member->identity()).second)
            parameters.push_back(named.member->tensor());
    return parameters;
}

Tensor clip_grad_norm_(const Optimizer& optimizer, const ClipGradNorm& clip) {
    optimizer.store()->require_members("clip_grad_norm_");
    return clip_grad_norm_(optimizer.parameters(clip.group), clip);
}

void clip_grad_value_(const Optimizer& optimizer, const ClipGradValue& clip) {
    optimizer.store()->require_members("clip_grad_value_");
    clip_grad_value_(optimizer.parameters(clip.group), clip);
}

}  // namespace lockstep
