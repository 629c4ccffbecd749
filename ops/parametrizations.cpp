#include "lockstep/ops/parametrizations.h"

#include <fmt/format.h>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/initial_values.h"
#include "lockstep/runtime/autocast.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// A weight as a matrix whose rows are those of dimension `dim`.
Tensor rows_along(const Tensor& weight, int dim) {
    const Tensor first = dim == 0 ? weight : movedim(weight, dim, 0);
    return first.reshape({first.size(0), first.numel() / first.size(0)});
}

}  // namespace

Parameter detail::parameter_in_place_of(const Parameter& weight, const Tensor& value) {
    Parameter parameter(value.clone());
    parameter.tensor().requires_grad_(weight.tensor().requires_grad());
    return parameter;
}

Tensor detail::norms_of_slices(const Tensor& v, std::optional<int> dim) {
    if (!dim) return norm(v);
    const int kept = wrap_dim(*dim, v.dims(), "WeightNorm");
    if (v.dims() == 1) return abs(v);
    std::vector<int> others;
    for (int d = 0; d < v.dims(); ++d)
        if (d != kept) others.push_back(d);
    return norm(v, 2, others, true);
}

Tensor detail::weight_of_direction(const Tensor& length, const Tensor& direction, std::optional<int> dim) {
    const Autocast full_precision(std::nullopt);
    return direction * (length / norms_of_slices(direction, dim));
}

detail::SpectralWeight::SpectralWeight(const Parameter& given, const SpectralNormOptions& options, int output_dim)
    : original(parameter_in_place_of(given, given.tensor().detach())),
      vectors{ModuleBuffer(Tensor::zeros({0})), ModuleBuffer(Tensor::zeros({0}))},
      n_power_iterations(options.n_power_iterations),
      dim(wrap_dim(options.dim.value_or(output_dim), given->dims(), "SpectralNorm")),
      eps(options.eps) {
    const Tensor weight = given.tensor().detach();
    require_positive("SpectralNorm", "n_power_iterations", n_power_iterations);
    if (weight.dims() < 2)
        throw InvalidArgument(fmt::format("SpectralNorm: the weight has the shape {}; expected at least two dimensions",
                                          weight.shape().str()));
    if (!(eps > 0))
        throw InvalidArgument(fmt::format("SpectralNorm: invalid eps ({}); expected a positive number", eps));
    const Tensor matrix = rows_along(weight, dim);
    const auto direction = [&](std::int64_t size) {
        return normalize(Tensor::randn({size}), 2, 0, eps).to(weight.dtype()).to(weight.device());
    };
    vectors = {ModuleBuffer(direction(matrix.size(0))), ModuleBuffer(direction(matrix.size(1)))};
    constexpr int first_iterations = 15;
    (void)normalized(first_iterations);
}

Tensor detail::SpectralWeight::normalized(int iterations) const {
    const Autocast full_precision(std::nullopt);
    const Tensor matrix = rows_along(original, dim);
    Tensor u = vectors._u, v = vectors._v;
    if (iterations > 0) {
        const NoGrad no_grad;
        const Tensor known = matrix.detach();
        for (int i = 0; i < iterations; ++i) {
            u = normalize(mv(known, v), 2, 0, eps);
            v = normalize(mv(known.transpose(0, 1), u), 2, 0, eps);
        }
        vectors._u->copy_(u);
        vectors._v->copy_(v);
    }
    return original.tensor() / dot(u, mv(matrix, v));
}

Tensor detail::vector_of(const std::vector<Tensor>& parameters) {
    if (parameters.empty())
        throw InvalidArgument("parameters_to_vector: the model has no parameters; expected at least one");
    std::vector<Tensor> parts;
    for (const Tensor& parameter : parameters) parts.push_back(parameter.flatten());
    return cat(parts);
}

void detail::write_vector(const Tensor& vector, const std::vector<Tensor>& parameters) {
    std::int64_t count = 0;
    for (const Tensor& parameter : parameters) count += parameter.numel();
    if (!vector.defined() || !(vector.shape() == Shape{count}))
        throw InvalidArgument(
            fmt::format("vector_to_parameters: the vector has the shape {}; expected {}, the number "
                        "of elements of all parameters",
                        vector.defined() ? vector.shape().str() : "undefined", Shape{count}.str()));
    const NoGrad no_grad;
    std::int64_t first = 0;
    for (const Tensor& parameter : parameters) {
        parameter.copy_(vector.slice(0, first, first + parameter.numel()).reshape(parameter.shape()));
        first += parameter.numel();
    }
}

}  // namespace lockstep
