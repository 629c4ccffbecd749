// Functions whose results have sizes that depend on values, and answers about values: the host waits for the values, so
// that they are refused inside `forward`, of which only shapes are known.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

/// `instead`: a function with a result of known size.
void require_values(const char* name, const char* instead) {
    if (Trace::current() != nullptr)
        throw InvalidArgument(fmt::format(
            "{}: the result depends on values that a traced forward does not have; expected {}", name, instead));
}

/// Numbers of the elements that are not 0, in row-major order.
std::vector<std::int64_t> numbers_of_nonzero(const Tensor& x) {
    const std::vector<bool> mask = ne(x, 0).to_vector<bool>();
    std::vector<std::int64_t> numbers;
    for (std::size_t i = 0; i < mask.size(); ++i)
        if (mask[i]) numbers.push_back(static_cast<std::int64_t>(i));
    return numbers;
}

Tensor vector_of(const std::vector<std::int64_t>& values, Device device) {
    return Tensor::from(values, {static_cast<std::int64_t>(values.size())}, device);
}

/// Runs of equal elements of a vector; inverse in the order of the vector.
UniqueResult runs_of(const Tensor& values) {
    const std::int64_t count = values.numel();
    const Tensor first = cat({Tensor::ones({1}, DType::boolean, values.device()),
                              ne(values.slice(0, 1, count), values.slice(0, 0, count - 1))});
    const Tensor begins = vector_of(numbers_of_nonzero(first), values.device());
    const Tensor ends =
        cat({begins.slice(0, 1), Tensor::full({1}, static_cast<double>(count), DType::i64, values.device())});
    return {index_select(values, 0, begins), cumsum(first, 0) - 1, ends - begins};
}

UniqueResult no_elements(const Tensor& x) {
    return {x.reshape({0}), Tensor::zeros(x.shape(), DType::i64, x.device()),
            Tensor::zeros({0}, DType::i64, x.device())};
}

}  // namespace

Tensor nonzero(const Tensor& given) {
    constexpr const char* name = "nonzero";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    require_values(name, "a mask (where, masked_fill)");
    const Tensor& x = call[0];
    const std::vector<std::int64_t> numbers = numbers_of_nonzero(x);
    const auto dims = static_cast<std::size_t>(x.dims());
    std::vector<std::int64_t> indices(numbers.size() * dims);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        std::int64_t rest = numbers[i];
        for (std::size_t dim = dims; dim-- > 0;) {
            const std::int64_t size = x.size(static_cast<int>(dim));
            indices[i * dims + dim] = rest % size;
            rest /= size;
        }
    }
    return Tensor::from(indices, {static_cast<std::int64_t>(numbers.size()), x.dims()}, x.device());
}

Tensor masked_select(const Tensor& given, const Tensor& given_mask) {
    constexpr const char* name = "masked_select";
    const CheckedArgs call(name, {arg::any("the tensor", given), arg::any("mask", given_mask)});
    require_values(name, "a mask (where, masked_fill)");
    const Tensor &x = call[0], &mask = call[1];
    if (mask.dtype() != DType::boolean)
        throw InvalidArgument(fmt::format("{}: mask has dtype {}; expected bool", name, name_of(mask.dtype())));
    const Shape shape = broadcast_shapes(x.shape(), mask.shape(), name);
    const Tensor numbers = vector_of(numbers_of_nonzero(mask.expand(shape)), x.device());
    return index_select(x.expand(shape).reshape({shape.numel()}), 0, numbers);
}

UniqueResult unique(const Tensor& given) {
    constexpr const char* name = "unique";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    require_values(name, "sort");
    const Tensor x = call[0].detach();
    const std::int64_t count = x.numel();
    if (count == 0) return no_elements(x);
    const ValuesAndIndices ordered = sort(x.reshape({count}), 0);
    const UniqueResult runs = runs_of(ordered.values);
    const Tensor inverse = scatter(zeros_like(ordered.indices), 0, ordered.indices, runs.inverse);
    return {runs.values, inverse.reshape(x.shape()), runs.counts};
}

UniqueResult unique_consecutive(const Tensor& given) {
    constexpr const char* name = "unique_consecutive";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    require_values(name, "a mask (ne of neighbours)");
    const Tensor x = call[0].detach();
    if (x.numel() == 0) return no_elements(x);
    const UniqueResult runs = runs_of(x.reshape({x.numel()}));
    return {runs.values, runs.inverse.reshape(x.shape()), runs.counts};
}

Tensor bincount(const Tensor& given, const Tensor& given_weights, std::int64_t minlength) {
    constexpr const char* name = "bincount";
    const CheckedArgs call(name, {arg::any("the tensor", given)});
    const CheckedArgs of_weights(name, {arg::optional("weights", given_weights)});
    require_values(name, "the sum of one_hot(x, n)");
    const Tensor x = call[0].detach();
    if (is_floating(x.dtype()) || x.dtype() == DType::boolean || x.dims() != 1)
        throw InvalidArgument(fmt::format("{}: the tensor {} has dtype {}; expected a vector of integers", name,
                                          x.shape().str(), name_of(x.dtype())));
    if (minlength < 0)
        throw InvalidArgument(fmt::format("{}: invalid minlength ({}); expected 0 or more", name, minlength));
    std::int64_t bins = minlength;
    if (x.numel() > 0) {
        const auto [least, most] = aminmax(x);
        if (least.item() < 0)
            throw InvalidArgument(fmt::format("{}: a number is negative ({}); expected 0 or more", name, least.item()));
        bins = std::max(bins, static_cast<std::int64_t>(most.item()) + 1);
    }
    Tensor weights = ones_like(x).to(DType::i64);
    if (of_weights[0].defined()) {
        weights = of_weights[0].detach();
        if (!(weights.shape() == x.shape()))
            throw InvalidArgument(fmt::format("{}: weights {} of numbers {}; expected equal shapes", name,
                                              weights.shape().str(), x.shape().str()));
        if (weights.dtype() != DType::f32) weights = weights.to(DType::f64);  // as PyTorch
    }
    return scatter_add(Tensor::zeros({bins}, weights.dtype(), x.device()), 0, x.to(DType::i64), weights);
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
    const CheckedArgs call("allclose", {arg::any("the first tensor", a), arg::any("the second tensor", b)});
    require_values("allclose", "isclose");
    return all(isclose(call[0], call[1], rtol, atol, equal_nan)).item() != 0;
}

bool equal(const Tensor& given_a, const Tensor& given_b) {
    constexpr const char* name = "equal";
    const CheckedArgs call(name, {arg::any("the first tensor", given_a), arg::any("the second tensor", given_b)});
    require_values(name, "eq");
    if (call[0].dtype() != call[1].dtype())
        throw InvalidArgument(fmt::format("{}: tensors of {} and {}; expected one dtype (use .to(dtype))", name,
                                          name_of(call[0].dtype()), name_of(call[1].dtype())));
    return call[0].shape() == call[1].shape() && all(eq(call[0], call[1])).item() != 0;
}

}  // namespace lockstep
