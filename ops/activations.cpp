// Activations and similar functions that consist of several operations. 16-bit inputs are computed in f32 and rounded
// once.
#include <fmt/format.h>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// `x` limited to [min, max], with the gradient 0 at the limits and of NaN.
Tensor limited(const Tensor& x, double min, double max) {
    return where(logical_and(x > min, x < max), x, clamp(x.detach(), min, max));
}

/// alpha * (exp(x / width) - 1) for numbers that are not positive, x for others.
Tensor exponential(const Tensor& x, double alpha, double width) {
    return where(x <= 0, expm1(clamp(x, std::nullopt, 0) / width) * alpha, x);
}

Tensor softened(const Tensor& x, double beta, double threshold) {
    const Tensor scaled = x * beta;
    return where(scaled > threshold, x, neg(logsigmoid(neg(scaled))) / beta);
}

template <class F>
Tensor of_floats(const char* name, const Tensor& given, F function) {
    const CheckedArgs call(name, {arg::floating("the tensor", given)});
    return function(widened(call[0])).to(call[0].dtype());
}

}  // namespace

Tensor softplus(const Tensor& x, double beta, double threshold) {
    if (!(beta > 0))
        throw InvalidArgument(fmt::format("softplus: invalid beta ({}); expected a positive number", beta));
    return of_floats("softplus", x, [=](const Tensor& wide) { return softened(wide, beta, threshold); });
}

Tensor elu(const Tensor& x, double alpha) {
    return of_floats("elu", x, [=](const Tensor& wide) { return exponential(wide, alpha, 1); });
}

Tensor celu(const Tensor& x, double alpha) {
    if (alpha == 0) throw InvalidArgument("celu: invalid alpha (0); expected another number");
    return of_floats("celu", x, [=](const Tensor& wide) { return exponential(wide, alpha, alpha); });
}

Tensor selu(const Tensor& x) {
    // Klambauer et al., "Self-Normalizing Neural Networks" (2017), with the digits of PyTorch.
    constexpr double alpha = 1.6732632423543772848170429916717, scale = 1.0507009873554804934193349852946;
    return of_floats("selu", x, [](const Tensor& wide) { return exponential(wide, alpha, 1) * scale; });
}

Tensor hardtanh(const Tensor& x, double min_val, double max_val) {
    if (!(min_val <= max_val))
        throw InvalidArgument(
            fmt::format("hardtanh: invalid limits ({} and {}); expected min_val <= max_val", min_val, max_val));
    const CheckedArgs call("hardtanh", {arg::floating("the tensor", x)});
    return limited(call[0], min_val, max_val);
}

Tensor relu6(const Tensor& x) {
    const CheckedArgs call("relu6", {arg::floating("the tensor", x)});
    return limited(call[0], 0, 6);
}

Tensor hardsigmoid(const Tensor& x) {
    return of_floats("hardsigmoid", x, [](const Tensor& wide) { return limited(wide + 3.0, 0, 6) / 6.0; });
}

Tensor hardswish(const Tensor& x) {
    // PyTorch's gradients at -3 and 3 and beyond; -infinity gives NaN.
    return of_floats("hardswish", x, [](const Tensor& wide) {
        const Tensor middle = clamp(wide, -3, 3);
        return where(wide < -3, wide.detach() * 0, where(wide > 3, wide, middle * (middle + 3.0) / 6.0));
    });
}

Tensor mish(const Tensor& x) {
    return of_floats("mish", x, [](const Tensor& wide) { return wide * tanh(softened(wide, 1, 20)); });
}

Tensor softsign(const Tensor& x) {
    return of_floats("softsign", x, [](const Tensor& wide) { return wide / (abs(wide) + 1.0); });
}

Tensor prelu(const Tensor& given_x, const Tensor& given_weight) {
    const CheckedArgs call("prelu", {arg::floating("input", given_x), arg::floating("weight", given_weight)});
    const Tensor &x = call[0], &weight = call[1];
    const std::int64_t channels = x.dims() < 2 ? 1 : x.size(1);
    if (weight.dims() > 1 || (weight.numel() != 1 && weight.numel() != channels))
        throw InvalidArgument(
            fmt::format("prelu: weight {} does not match input {}; expected one number, or one for "
                        "each of {} channels",
                        weight.shape().str(), x.shape().str(), channels));
    Shape shape;
    for (int dim = 0; dim < x.dims(); ++dim) shape.push_back(dim == 1 ? weight.numel() : 1);
    return where(x > 0, x, x * weight.reshape(x.dims() < 2 ? Shape{} : shape));
}

Tensor glu(const Tensor& given, int dim) {
    const CheckedArgs call("glu", {arg::floating("the tensor", given)});
    const Tensor x = widened(call[0]);
    const int along = wrap_dim(dim, x.dims(), "glu");
    if (x.size(along) % 2 != 0)
        throw InvalidArgument(
            fmt::format("glu: dimension {} of {} has an odd size; expected two halves", along, x.shape().str()));
    const std::int64_t half = x.size(along) / 2;
    return (x.slice(along, 0, half) * sigmoid(x.slice(along, half, 2 * half))).to(call[0].dtype());
}

Tensor normalize(const Tensor& given, double p, int dim, double eps) {
    const CheckedArgs call("normalize", {arg::floating("the tensor", given)});
    const Tensor x = widened(call[0]);
    return (x / clamp(norm(x, p, dim, true), eps)).to(call[0].dtype());
}

Tensor cosine_similarity(const Tensor& given_a, const Tensor& given_b, int dim, double eps) {
    const CheckedArgs call("cosine_similarity",
                           {arg::floating("the first tensor", given_a), arg::floating("the second tensor", given_b)});
    const Tensor a = widened(call[0]), b = widened(call[1]);
    const Tensor lengths = clamp(norm(a, 2, dim), eps) * clamp(norm(b, 2, dim), eps);
    return (sum(a * b, dim) / lengths).to(call[0].dtype());
}

}  // namespace lockstep
