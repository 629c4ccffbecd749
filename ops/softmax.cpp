#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// The gradient, computed by functions with gradients.
template <bool logarithm>
Tensor differentiable_gradient(const Tensor& given_dy, const Tensor& given_y, int dim) {
    const Tensor dy = widened(given_dy), y = widened(given_y);
    const Tensor dx = logarithm ? dy - exp(y) * sum(dy, dim, true) : y * (dy - sum(dy * y, dim, true));
    return tagged(dx.to(given_dy.dtype()), given_dy.is_batch());
}

template <bool logarithm>
Tensor softmax_along(const char* name, const Tensor& given, int dim) {
    const CheckedArgs call(name, {arg::floating("input", given)});
    const Tensor& x = call[0];
    const int along = wrap_dim(dim, x.dims(), name);
    const Tensor y = apply_one(SoftmaxForward<logarithm>{along}, {x}, like(x));
    if (needs_autograd({x}))
        add_autograd_node(
            name, {x}, {y},
            BackwardFunction::composed([along,
                                        output = SavedTensor(y, name, SavedTensor::Role::output)](const auto& d) {
                const Tensor saved = output.get();
                if (grad_enabled()) return std::vector<Tensor>{differentiable_gradient<logarithm>(d[0], saved, along)};
                return std::vector<Tensor>{apply_one(SoftmaxBackward<logarithm>{along}, {d[0], saved}, like(saved))};
            }));
    return y;
}

}  // namespace

Tensor softmax(const Tensor& x, int dim) { return softmax_along<false>("softmax", x, dim); }
Tensor log_softmax(const Tensor& x, int dim) { return softmax_along<true>("log_softmax", x, dim); }

Tensor softmin(const Tensor& given, int dim) {
    const CheckedArgs call("softmin", {arg::floating("the tensor", given)});
    return softmax(neg(call[0]), dim);
}

}  // namespace lockstep
