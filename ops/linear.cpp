// Matrix products.
#include <fmt/format.h>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

Tensor transposed(const Tensor& x) { return x.transpose(-2, -1); }

/// Product of two matrices, or of two batches of equal size.
Tensor product(const Tensor& a, const Tensor& b) {
    Shape shape = a.shape();
    shape[shape.dims() - 1] = b.size(-1);
    const bool batch = a.is_batch() || (b.dims() == 3 && b.is_batch());
    const Tensor y = apply_one(MatMul{}, {a, b}, shaped(a, shape, batch));
    if (!needs_autograd({a, b})) return y;
    SavedTensor first, second;
    if (b.requires_grad()) first = SavedTensor(a, "matmul");
    if (a.requires_grad()) second = SavedTensor(b, "matmul");
    add_autograd_node("matmul", {a, b}, {y},
                      [first, second, a_wanted = a.requires_grad(), b_wanted = b.requires_grad(), tag_a = a.is_batch(),
                       tag_b = b.is_batch()](const std::vector<Tensor>& gradients) {
                          std::vector<Tensor> result(2);
                          if (a_wanted) result[0] = tagged(product(gradients[0], transposed(second.get())), tag_a);
                          if (b_wanted) result[1] = tagged(product(transposed(first.get()), gradients[0]), tag_b);
                          return result;
                      });
    return y;
}

}  // namespace

Tensor matmul(const Tensor& given_a, const Tensor& given_b) {
    const CheckedArgs call("matmul",
                           {arg::floating("the first tensor", given_a), arg::floating("the second tensor", given_b)});
    const Tensor &a = call[0], &b = call[1];
    const auto refuse = [&](const char* why) {
        throw InvalidArgument(
            fmt::format("matmul: cannot multiply {} by {}; {}", a.shape().str(), b.shape().str(), why));
    };
    if (a.dims() < 2 || a.dims() > 3 || b.dims() < 2 || b.dims() > 3)
        refuse("expected matrices or batches of matrices, (M, K) or (B, M, K)");
    if (a.size(-1) != b.size(-2)) refuse("expected as many columns of the first as rows of the second");
    if (a.dims() == 3 && b.dims() == 3 && a.size(0) != b.size(0)) refuse("expected batches of equal size");
    if (a.dims() == 3 && b.dims() == 2) {
        const Tensor rows = product(a.reshape({a.size(0) * a.size(1), a.size(2)}), b);
        return tagged(rows.reshape({a.size(0), a.size(1), b.size(1)}), a.is_batch());
    }
    if (a.dims() == 2 && b.dims() == 3) return product(a.expand({b.size(0), a.size(0), a.size(1)}), b);
    return product(a, b);
}

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
        "linear", {x, weight, bias}, {y}, [=, dx = like(x), dw = like(weight)](const std::vector<Tensor>& gradients) {
            std::vector<Tensor> result(3);
            if (x_wanted) result[0] = apply_one(LinearBackwardData{}, {gradients[0], weights.get()}, dx);
            if (weights_wanted) {
                const Output db = bias_wanted ? Output(TensorMeta::contiguous(dw.dtype, {dw.shape[0]})) : Output();
                const auto made = apply(make_operation(LinearBackwardWeights{}), {input.get(), gradients[0]}, {dw, db});
                result[1] = made[0];
                result[2] = made[1];
            }
            return result;
        });
    return y;
}

}  // namespace lockstep
