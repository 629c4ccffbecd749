// The product of a tensor and a matrix of weights.
#include <fmt/format.h>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

Tensor linear(const Tensor& given_x, const Tensor& given_weight, const Tensor& given_bias) {
    const CheckedArgs call("linear", {arg::floating("input", given_x), arg::floating("weight", given_weight),
                                      arg::optional("bias", given_bias)});
    const Tensor &x = call[0], &weight = call[1], &bias = call[2];
    checks::dims("linear", "weight", weight, 2, "(out, in)");
    if (x.dims() < 1 || x.size(-1) != weight.size(1))
        throw InvalidArgument(
            fmt::format("linear: input {} has {} features; weight {} expects {}, as in Linear(features, ...)",
                        x.shape().str(), x.dims() < 1 ? 0 : x.size(-1), weight.shape().str(), weight.size(1)));
    checks::vector_of("linear", "bias", bias, weight.size(0), "output");
    if (x.dims() != 2) {
        Shape shape = x.shape();
        shape[shape.dims() - 1] = weight.size(0);
        const std::int64_t features = weight.size(1);
        const Tensor rows = x.reshape({features == 0 ? 0 : x.numel() / features, features});
        return tagged(linear(rows, weight, bias).reshape(shape), x.is_batch() && x.dims() > 1);
    }

    const Tensor y =
        apply_one(LinearForward{}, {x, weight, bias}, shaped(x, {x.size(0), weight.size(0)}, x.is_batch()));
    if (!needs_autograd({x, weight, bias})) return y;
    const bool x_wanted = x.requires_grad();
    const bool bias_wanted = bias.defined() && bias.requires_grad();
    const bool weights_wanted = weight.requires_grad() || bias_wanted;
    SavedTensor input, weights;
    if (weights_wanted) input = SavedTensor(x, "linear");
    if (x_wanted) weights = SavedTensor(weight, "linear");
    add_autograd_node(
        "linear", {x, weight, bias}, {y},
        BackwardFunction::composed([=, dx = like(x), dw = like(weight)](const auto& gradients) {
            const Tensor& dy = gradients[0];
            std::vector<Tensor> result(3);
            if (grad_enabled()) {
                if (x_wanted) result[0] = tagged(matmul(dy, weights.get()), dx.batch);
                if (weights_wanted) result[1] = tagged(matmul(dy.transpose(0, 1), input.get()), dw.batch);
                if (bias_wanted) result[2] = sum(dy, 0);
                return result;
            }
            if (x_wanted) result[0] = apply_one(LinearBackwardData{}, {dy, weights.get()}, dx);
            if (weights_wanted) {
                const Output db = bias_wanted ? Output(TensorMeta::contiguous(dw.dtype, {dw.shape[0]})) : Output();
                const auto made = apply(make_operation(LinearBackwardWeights{}), {input.get(), dy}, {dw, db});
                result[1] = made[0];
                result[2] = made[1];
            }
            return result;
        }));
    return y;
}

}  // namespace lockstep
