// Clipping of gradients: torch.nn.utils.clip_grad_norm_ and clip_grad_value_. In a step they are options (StepOptions);
// these are for the manual form, between backward() and the optimizer's step().
#pragma once

#include <type_traits>
#include <variant>
#include <vector>

#include "lockstep/ops/module.h"
#include "lockstep/ops/optimizer.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Gradients are scaled by max_norm / (norm + 1e-6) if that is less than 1. The norm is that of all elements together,
/// computed in double.
struct ClipGradNorm {
    double max_norm = 0;
    double norm_type = 2;             ///< any order above 0, or infinity: the largest magnitude
    bool error_if_nonfinite = false;  ///< a norm that is NaN or infinite is an error; otherwise it scales normally
    int group = -1;                   ///< parameter group of the optimizer; -1: all. Only used by steps

    /// Throws InvalidArgument for invalid numbers.
    void check() const;
};

/// Clamps every element of the gradients to [-clip_value, clip_value].
struct ClipGradValue {
    double clip_value = 0;
    int group = -1;  ///< as in ClipGradNorm

    void check() const;
};

/// A way to clip gradients.
using GradientClip = std::variant<ClipGradNorm, ClipGradValue>;

/// Clips the gradients of those `parameters` that have one, in place, on one device or several. Returns the norm before
/// clipping, a scalar of f64 on the device of the first gradient, without waiting for it. Returns 0 on the host if
/// there are no gradients. Throws InvalidArgument for a non-finite norm if that is an error (which waits for the norm);
/// the gradients are then unchanged.
Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, const ClipGradNorm& clip);
void clip_grad_value_(const std::vector<Tensor>& parameters, const ClipGradValue& clip);

namespace detail {
/// Parameters among `tensors`; shared ones appear once. Throws InvalidArgument if the model's members have changed.
std::vector<Tensor> parameters_among(const std::vector<NamedTensor>& tensors);
/// Parameters of a wrapper, a plain module or a part of one.
template <class Model>
std::vector<Tensor> parameters_of(Model& model) {
    if constexpr (requires { model.module(); }) {
        model.parameter_store()->require_members("clip_grad");
        return parameters_among(named_tensors(model.module()));
    } else {
        return parameters_among(named_tensors(model));
    }
}
template <class Model>
inline constexpr bool is_model =
    !std::is_base_of_v<Optimizer, Model> && !std::is_same_v<std::remove_const_t<Model>, std::vector<Tensor>>;
}  // namespace detail

/// The same for a model, wrapped or plain: `clip_grad_norm_(model, {.max_norm = 1})`.
template <class Model>
requires detail::is_model<Model> Tensor clip_grad_norm_(Model& model, const ClipGradNorm& clip) {
    return clip_grad_norm_(detail::parameters_of(model), clip);
}
template <class Model>
requires detail::is_model<Model>
void clip_grad_value_(Model& model, const ClipGradValue& clip) { clip_grad_value_(detail::parameters_of(model), clip); }

/// The same for the parameters of an optimizer in group `clip.group`.
Tensor clip_grad_norm_(const Optimizer& optimizer, const ClipGradNorm& clip);
void clip_grad_value_(const Optimizer& optimizer, const ClipGradValue& clip);

}  // namespace lockstep
