// Tensors made of parts of others, or with their elements in another order.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

Tensor cat(const std::vector<Tensor>& given, int dim) {
    const CheckedArgs call("cat", "a tensor", given, CheckedArgs::Dtypes::promoted);
    const TensorList tensors = call.tensors();
    if (tensors.empty()) throw InvalidArgument("cat: an empty list of tensors; expected at least one");
    Shape shape = tensors[0].shape();
    if (shape.dims() == 0)
        throw InvalidArgument("cat: scalars cannot be concatenated; expected at least one dimension (use reshape)");
    const int along = wrap_dim(dim, shape.dims(), "cat");
    shape[along] = 0;
    // Along dimension 0, rows of several batches follow one another: the result is not a batch of the program.
    bool batch = false;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        Shape expected = tensors[i].shape();
        if (expected.dims() == shape.dims()) expected[along] = shape[along];
        if (!(expected == shape))
            throw InvalidArgument(
                fmt::format("cat: tensor {} is {} and the first {}; expected equal dimensions except {}", i,
                            tensors[i].shape().str(), tensors[0].shape().str(), along));
        shape[along] += tensors[i].size(along);
        batch = batch || (along != 0 && tensors[i].is_batch());
    }
    const Tensor y = apply_one(Cat{along}, tensors, shaped(tensors[0], shape, batch));
    if (!needs_autograd(tensors)) return y;
    struct Part {
        std::int64_t size;
        bool wanted, batch;
    };
    std::vector<Part> parts;
    for (const Tensor& tensor : tensors)
        parts.push_back({tensor.size(along), tensor.requires_grad(), tensor.is_batch()});
    add_autograd_node(
        "cat", tensors, {y}, BackwardFunction::composed([along, parts](const auto& gradients) {
            std::vector<Tensor> result;
            if (along != 0 && !grad_enabled()) {  // copies: views of channels would take the gradient out of its layout
                std::vector<std::int64_t> sizes;
                std::vector<Output> outputs;
                for (const Part& part : parts) {
                    Shape of_part = gradients[0].shape();
                    of_part[along] = part.size;
                    sizes.push_back(part.size);
                    outputs.push_back(part.wanted ? Output(shaped(gradients[0], of_part, part.batch)) : Output());
                }
                return apply(make_operation(Split{along, sizes}), {gradients[0]}, outputs);
            }
            std::int64_t start = 0;
            for (const Part& part : parts) {
                result.push_back(part.wanted ? tagged(gradients[0].slice(along, start, start + part.size), part.batch)
                                             : Tensor());
                start += part.size;
            }
            return result;
        }));
    return y;
}

namespace {

Tensor padded(const char* name, const Tensor& x, const Shape& before, const Shape& shape, double value) {
    const bool batch = x.is_batch() && before[0] == 0 && shape[0] == x.size(0);
    const Tensor y = apply_one(Pad{before, value}, {x}, shaped(x, shape, batch));
    if (needs_autograd({x}))
        add_autograd_node(
            name, {x}, {y},
            BackwardFunction::composed([name, before, origin = x.shape(), tag = x.is_batch()](const auto& gradients) {
                Shape back = before;
                for (int i = 0; i < back.dims(); ++i) back[i] = -back[i];
                return std::vector<Tensor>{tagged(padded(name, gradients[0], back, origin, 0), tag)};
            }));
    return y;
}

}  // namespace

Tensor pad(const Tensor& given, const std::vector<std::int64_t>& pad, double value) {
    const CheckedArgs call("pad", {arg::any("input", given)});
    const Tensor& x = call[0];
    const auto pairs = static_cast<int>(pad.size() / 2);
    if (pad.size() % 2 != 0)
        throw InvalidArgument(fmt::format(
            "pad: {} numbers; expected two per dimension, before and after, from the last dimension on", pad.size()));
    if (pairs > x.dims())
        throw InvalidArgument(fmt::format("pad: {} numbers for input {}; expected at most two per dimension",
                                          pad.size(), x.shape().str()));
    Shape before = x.shape(), shape = x.shape();
    for (int i = 0; i < before.dims(); ++i) before[i] = 0;
    bool any = false;
    for (int pair = 0; pair < pairs; ++pair) {
        const int dim = x.dims() - 1 - pair;
        const std::int64_t first = pad[static_cast<std::size_t>(2 * pair)];
        const std::int64_t last = pad[static_cast<std::size_t>(2 * pair) + 1];
        // Tensors of more than 2^40 elements are mistakes, and sizes would overflow.
        constexpr std::int64_t most = std::int64_t{1} << 40;
        const bool usable = first <= most && first >= -most && last <= most && last >= -most;
        before[dim] = first;
        shape[dim] = usable ? x.size(dim) + first + last : 0;
        const std::int64_t cut = std::min<std::int64_t>(first, 0) + std::min<std::int64_t>(last, 0);
        if (!usable || x.size(dim) + cut < 0)
            throw InvalidArgument(fmt::format(
                "pad: padding {} and {} of dimension {} of input {}; expected a result of 0 or more elements", first,
                last, dim, x.shape().str()));
        any = any || first != 0 || last != 0;
    }
    return any ? padded("pad", x, before, shape, value) : x;
}

Tensor permute(const Tensor& given, const std::vector<int>& dims) {
    constexpr const char* name = "permute";
    const CheckedArgs call(name, {arg::any("input", given)});
    if (static_cast<int>(dims.size()) != call[0].dims())
        throw InvalidArgument(
            fmt::format("permute: the number of dimensions in the tensor input {} does not match the length of the "
                        "desired ordering of dimensions, {}; expected every dimension once",
                        call[0].shape().str(), dims.size()));
    std::vector<int> wanted;
    for (const int dim : dims) {
        const int d = wrap_dim(dim, call[0].dims(), name);
        if (std::find(wanted.begin(), wanted.end(), d) != wanted.end())
            throw InvalidArgument(
                fmt::format("permute: dimension {} is listed twice; expected every dimension once", dim));
        wanted.push_back(d);
    }
    Tensor x = call[0];
    std::vector<int> now(wanted.size());  // dimension of the input at each position
    std::iota(now.begin(), now.end(), 0);
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        const auto found = static_cast<std::size_t>(std::find(now.begin(), now.end(), wanted[i]) - now.begin());
        x = x.transpose(static_cast<int>(i), static_cast<int>(found));
        std::swap(now[i], now[found]);
    }
    return x;
}

Tensor one_hot(const Tensor& given, std::int64_t num_classes) {
    const CheckedArgs call("one_hot", {arg::any("input", given)});
    const Tensor& x = call[0];
    if (x.dtype() != DType::i64)
        throw InvalidArgument(
            fmt::format("one_hot: one_hot is only applicable to index tensors of type i64, not {}; expected i64 (use "
                        ".to(DType::i64))",
                        name_of(x.dtype())));
    if (num_classes < 1)
        throw InvalidArgument(
            fmt::format("one_hot: invalid num_classes ({}); expected a positive number", num_classes));
    Shape shape = x.shape();
    shape.push_back(num_classes);
    return apply_one(OneHot{x.dims()}, {x}, TensorMeta::contiguous(DType::i64, shape, x.is_batch()));
}

Tensor flatten(const Tensor& x, int start_dim, int end_dim) {
    const CheckedArgs call("flatten", {arg::any("the tensor", x)});
    return call[0].flatten(start_dim, end_dim);
}

}  // namespace lockstep
