// Activations with several formulas, and similar functions that consist of several operations. 16-bit inputs are
// computed in f32 and rounded once.
#include <fmt/format.h>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/gate_operations.h"
#include "lockstep/ops/internal/piecewise.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

using functor::Piecewise;

Tensor softplus(const Tensor& x, double beta, double threshold) {
    if (!(beta > 0))
        throw InvalidArgument(fmt::format("softplus: invalid beta ({}); expected a positive number", beta));
    return piecewise("softplus", x, Piecewise::softplus, beta, threshold);
}

Tensor elu(const Tensor& x, double alpha) { return piecewise("elu", x, Piecewise::elu, alpha, 1, 1); }

Tensor celu(const Tensor& x, double alpha) {
    if (alpha == 0) throw InvalidArgument("celu: invalid alpha (0); expected another number");
    return piecewise("celu", x, Piecewise::elu, alpha, 1 / alpha, 1);
}

Tensor selu(const Tensor& x) {
    // Klambauer et al., "Self-Normalizing Neural Networks" (2017), with the digits of PyTorch.
    constexpr double alpha = 1.6732632423543772848170429916717, scale = 1.0507009873554804934193349852946;
    return piecewise("selu", x, Piecewise::elu, alpha, 1, scale);
}

Tensor hardtanh(const Tensor& x, double min_val, double max_val) {
    if (!(min_val <= max_val))
        throw InvalidArgument(
            fmt::format("hardtanh: invalid limits ({} and {}); expected min_val <= max_val", min_val, max_val));
    return piecewise("hardtanh", x, Piecewise::limited, min_val, max_val);
}

Tensor relu6(const Tensor& x) { return piecewise("relu6", x, Piecewise::limited, 0, 6); }
Tensor hardsigmoid(const Tensor& x) { return piecewise("hardsigmoid", x, Piecewise::hardsigmoid); }
Tensor hardswish(const Tensor& x) { return piecewise("hardswish", x, Piecewise::hardswish); }
Tensor mish(const Tensor& x) { return piecewise("mish", x, Piecewise::mish); }

Tensor softsign(const Tensor& given) {
    const CheckedArgs call("softsign", {arg::floating("the tensor", given)});
    const Tensor x = widened(call[0]);
    return (x / (abs(x) + 1.0)).to(call[0].dtype());
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
    const Tensor& x = call[0];
    const int along = wrap_dim(dim, x.dims(), "glu");
    if (x.size(along) % 2 != 0)
        throw InvalidArgument(
            fmt::format("glu: dimension {} of {} has an odd size; expected two halves", along, x.shape().str()));
    const std::int64_t half = x.size(along) / 2;
    Shape shape = x.shape();
    shape[along] = half;
    const Tensor y = apply_one(Glu{along}, {x}, shaped(x, shape, x.is_batch() && along != 0));
    if (needs_autograd({x}))
        add_autograd_node("glu", {x}, {y},
                          BackwardFunction::composed([along, half, input = SavedTensor(x, "glu"),
                                                      dx = like(x)](const auto& gradients) {
                              const Tensor& dy = gradients[0];
                              const Tensor all = input.get();
                              if (!grad_enabled())
                                  return std::vector<Tensor>{apply_one(GluBackward{along}, {dy, all}, dx)};
                              const Tensor wide = widened(all), scaled = widened(dy),
                                           gate = sigmoid(wide.slice(along, half, 2 * half));
                              const Tensor both = cat(
                                  {scaled * gate, scaled * wide.slice(along, 0, half) * ((1.0 - gate) * gate)}, along);
                              return std::vector<Tensor>{tagged(both.to(dy.dtype()), dx.batch)};
                          }));
    return y;
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
