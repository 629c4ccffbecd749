// Products and distances of vectors and matrices, made of matmul and elementwise functions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

CheckedArgs pair_of(const char* name, const Tensor& a, const Tensor& b) {
    return CheckedArgs(name, {arg::floating("the first tensor", a), arg::floating("the second tensor", b)});
}

/// beta x + alpha product.
Tensor sum_of_products(const char* name, const Tensor& given_x, const Tensor& given_product, double beta,
                       double alpha) {
    const CheckedArgs call(name, {arg::floating("input", given_x), arg::floating("the product", given_product)});
    const Tensor& product = call[1];
    const Tensor scaled = alpha == 1 ? product : product * alpha;
    if (beta == 0) return scaled;
    const Tensor& x = call[0];
    if (!(broadcast_shapes(x.shape(), product.shape(), name) == product.shape()))
        throw InvalidArgument(
            fmt::format("{}: input {} has more rows or dimensions than the product {}; expected one "
                        "that broadcasts to it",
                        name, x.shape().str(), product.shape().str()));
    return (beta == 1 ? x : x * beta) + scaled;
}

std::int64_t numel(const Shape& shape) {
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    return count;
}

}  // namespace

Tensor bmm(const Tensor& a, const Tensor& b) {
    const CheckedArgs call = pair_of("bmm", a, b);
    checks::dims("bmm", "the first tensor", call[0], 3, "(B, M, K)");
    checks::dims("bmm", "the second tensor", call[1], 3, "(B, K, N)");
    if (call[0].size(0) != call[1].size(0))
        throw InvalidArgument(fmt::format("bmm: batches of {} and {} matrices; expected equal numbers", call[0].size(0),
                                          call[1].size(0)));
    return matmul(call[0], call[1]);
}

Tensor mm(const Tensor& a, const Tensor& b) {
    const CheckedArgs call = pair_of("mm", a, b);
    checks::dims("mm", "the first tensor", call[0], 2, "(M, K)");
    checks::dims("mm", "the second tensor", call[1], 2, "(K, N)");
    return matmul(call[0], call[1]);
}

Tensor addmv(const Tensor& x, const Tensor& a, const Tensor& b, double beta, double alpha) {
    const CheckedArgs call = pair_of("addmv", a, b);
    return sum_of_products("addmv", x, mv(call[0], call[1]), beta, alpha);
}

Tensor addr(const Tensor& x, const Tensor& a, const Tensor& b, double beta, double alpha) {
    const CheckedArgs call = pair_of("addr", a, b);
    return sum_of_products("addr", x, outer(call[0], call[1]), beta, alpha);
}

Tensor inner(const Tensor& given_a, const Tensor& given_b) {
    const CheckedArgs call = pair_of("inner", given_a, given_b);
    const Tensor &a = call[0], &b = call[1];
    if (a.dims() == 0 || b.dims() == 0) return a * b;
    if (a.size(-1) != b.size(-1))
        throw InvalidArgument(
            fmt::format("inner: tensors {} and {}; expected equal last sizes", a.shape().str(), b.shape().str()));
    Shape shape = a.shape();
    shape.erase(shape.dims() - 1);
    for (int dim = 0; dim + 1 < b.dims(); ++dim) shape.push_back(b.size(dim));
    const std::int64_t terms = a.size(-1);
    const auto lines = [terms](const Tensor& x) {
        std::int64_t count = 1;
        for (int dim = 0; dim + 1 < x.dims(); ++dim) count *= x.size(dim);
        return x.reshape({count, terms});
    };
    return tagged(matmul(lines(a), lines(b).transpose(0, 1)).reshape(shape), a.is_batch() && a.dims() > 1);
}

Tensor vdot(const Tensor& a, const Tensor& b) {
    const CheckedArgs call = pair_of("vdot", a, b);
    return dot(call[0], call[1]);
}

Tensor mv(const Tensor& a, const Tensor& b) {
    const CheckedArgs call = pair_of("mv", a, b);
    checks::dims("mv", "the first tensor", call[0], 2, "(M, K)");
    checks::dims("mv", "the second tensor", call[1], 1, "(K)");
    return matmul(call[0], call[1]);
}

Tensor dot(const Tensor& a, const Tensor& b) {
    const CheckedArgs call = pair_of("dot", a, b);
    checks::dims("dot", "the first tensor", call[0], 1, "(K)");
    checks::dims("dot", "the second tensor", call[1], 1, "(K)");
    return matmul(call[0], call[1]);
}

Tensor addmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta, double alpha) {
    const CheckedArgs call = pair_of("addmm", a, b);
    checks::dims("addmm", "the first factor", call[0], 2, "(M, K)");
    checks::dims("addmm", "the second factor", call[1], 2, "(K, N)");
    return sum_of_products("addmm", x, matmul(call[0], call[1]), beta, alpha);
}

Tensor baddbmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta, double alpha) {
    const CheckedArgs call = pair_of("baddbmm", a, b);
    checks::dims("baddbmm", "the first factor", call[0], 3, "(B, M, K)");
    checks::dims("baddbmm", "the second factor", call[1], 3, "(B, K, N)");
    return sum_of_products("baddbmm", x, matmul(call[0], call[1]), beta, alpha);
}

Tensor tensordot(const Tensor& given_a, const Tensor& given_b, int dims) {
    constexpr const char* name = "tensordot";
    const CheckedArgs call = pair_of(name, given_a, given_b);
    const Tensor &a = call[0], &b = call[1];
    if (dims < 0 || dims > std::min(a.dims(), b.dims()))
        throw InvalidArgument(fmt::format("{}: {} dimensions of tensors {} and {}; expected 0 to {}", name, dims,
                                          a.shape().str(), b.shape().str(), std::min(a.dims(), b.dims())));
    Shape kept_of_a, kept_of_b, summed;
    for (int dim = 0; dim < a.dims() - dims; ++dim) kept_of_a.push_back(a.size(dim));
    for (int dim = 0; dim < dims; ++dim) {
        summed.push_back(b.size(dim));
        if (a.size(a.dims() - dims + dim) != b.size(dim))
            throw InvalidArgument(fmt::format("{}: the last {} dimensions of {} differ from the first ones of {}", name,
                                              dims, a.shape().str(), b.shape().str()));
    }
    Shape shape = kept_of_a;
    for (int dim = dims; dim < b.dims(); ++dim) {
        kept_of_b.push_back(b.size(dim));
        shape.push_back(b.size(dim));
    }
    const Tensor product =
        matmul(a.reshape({numel(kept_of_a), numel(summed)}), b.reshape({numel(summed), numel(kept_of_b)}));
    return product.reshape(shape);
}

Tensor kron(const Tensor& given_a, const Tensor& given_b) {
    const CheckedArgs call("kron",
                           {arg::promoted("the first tensor", given_a), arg::promoted("the second tensor", given_b)});
    const int dims = std::max(call[0].dims(), call[1].dims());
    Shape of_a, of_b, shape;
    for (int dim = 0; dim < dims; ++dim) {
        const auto size = [&](const Tensor& x) {
            const int own = dim - (dims - x.dims());
            return own < 0 ? 1 : x.size(own);
        };
        const std::int64_t a = size(call[0]), b = size(call[1]);
        of_a.push_back(a);
        of_a.push_back(1);
        of_b.push_back(1);
        of_b.push_back(b);
        shape.push_back(a * b);
    }
    return (call[0].reshape(of_a) * call[1].reshape(of_b)).reshape(shape);
}

Tensor cross(const Tensor& given_a, const Tensor& given_b, int dim) {
    constexpr const char* name = "cross";
    const CheckedArgs call = pair_of(name, given_a, given_b);
    const Shape shape = broadcast_shapes(call[0].shape(), call[1].shape(), name);
    const int along = wrap_dim(dim, std::max(call[0].dims(), call[1].dims()), name);
    const Tensor a = call[0].expand(shape), b = call[1].expand(shape);
    if (call[0].dims() != call[1].dims() || shape[along] != 3)
        throw InvalidArgument(
            fmt::format("{}: tensors {} and {}; expected equal numbers of dimensions, and 3 elements "
                        "along dimension {}",
                        name, call[0].shape().str(), call[1].shape().str(), along));
    const auto part = [&](const Tensor& x, int i) { return x.slice(along, i % 3, i % 3 + 1); };
    std::vector<Tensor> parts;
    for (int i = 0; i < 3; ++i) parts.push_back(part(a, i + 1) * part(b, i + 2) - part(a, i + 2) * part(b, i + 1));
    return cat(parts, along);
}

Tensor cdist(const Tensor& given_a, const Tensor& given_b, double p) {
    constexpr const char* name = "cdist";
    const CheckedArgs call = pair_of(name, given_a, given_b);
    if (call[0].dims() < 2 || call[1].dims() < 2 || call[0].size(-1) != call[1].size(-1))
        throw InvalidArgument(fmt::format("{}: tensors {} and {}; expected (..., P, M) and (..., R, M)", name,
                                          call[0].shape().str(), call[1].shape().str()));
    return norm(call[0].unsqueeze(-2) - call[1].unsqueeze(-3), p, -1);
}

Tensor pairwise_distance(const Tensor& given_a, const Tensor& given_b, double p, double eps, bool keepdim) {
    const CheckedArgs call = pair_of("pairwise_distance", given_a, given_b);
    const Tensor a = widened(call[0]), b = widened(call[1]);
    return norm(a - b + eps, p, -1, keepdim).to(call[0].dtype());
}

Tensor bilinear(const Tensor& given_a, const Tensor& given_b, const Tensor& given_weight, const Tensor& given_bias) {
    constexpr const char* name = "bilinear";
    const CheckedArgs call(name, {arg::floating("the first input", given_a), arg::floating("the second input", given_b),
                                  arg::floating("weight", given_weight), arg::optional("bias", given_bias)});
    const Tensor &a = call[0], &b = call[1], &weight = call[2];
    checks::dims(name, "weight", weight, 3, "(out, in1, in2)");
    checks::vector_of(name, "bias", call[3], weight.size(0), "output");
    if (a.dims() == 0 || b.dims() != a.dims() || a.size(-1) != weight.size(1) || b.size(-1) != weight.size(2))
        throw InvalidArgument(
            fmt::format("{}: inputs {} and {} do not match weight {}; expected (..., in1) and (..., "
                        "in2) of (out, in1, in2)",
                        name, a.shape().str(), b.shape().str(), weight.shape().str()));
    const std::int64_t out = weight.size(0), in1 = weight.size(1), in2 = weight.size(2);
    // weight b for every output and element of a, then its product with a.
    Shape parts = a.shape();
    parts[a.dims() - 1] = out;
    parts.push_back(in1);
    const Tensor of_b = linear(b, weight.reshape({out * in1, in2})).reshape(parts);
    const Tensor y = matmul(of_b, a.unsqueeze(-1)).squeeze(-1);
    return call[3].defined() ? y + call[3] : y;
}

Tensor tensordot(const Tensor& given_a, const Tensor& given_b, const std::vector<int>& dims_a,
                 const std::vector<int>& dims_b) {
    constexpr const char* name = "tensordot";
    const CheckedArgs call = pair_of(name, given_a, given_b);
    if (dims_a.size() != dims_b.size())
        throw InvalidArgument(fmt::format("{}: {} dimensions of one tensor and {} of the other; expected equal numbers",
                                          name, dims_a.size(), dims_b.size()));
    // The dimensions that are not in the list, in their order.
    const auto others = [&](const Tensor& x, const std::vector<int>& dims) {
        const std::uint32_t summed = dims.empty() ? 0 : checks::dim_bits(name, x, dims);
        std::vector<int> kept;
        for (int dim = 0; dim < x.dims(); ++dim)
            if ((summed >> dim & 1u) == 0) kept.push_back(dim);
        return kept;
    };
    const auto wrapped = [&](const Tensor& x, std::vector<int> dims) {
        for (int& dim : dims) dim = wrap_dim(dim, x.dims(), name);
        return dims;
    };
    std::vector<int> order_a = others(call[0], dims_a), order_b = wrapped(call[1], dims_b);
    const std::vector<int> last_of_a = wrapped(call[0], dims_a), last_of_b = others(call[1], dims_b);
    order_a.insert(order_a.end(), last_of_a.begin(), last_of_a.end());
    order_b.insert(order_b.end(), last_of_b.begin(), last_of_b.end());
    return tensordot(permute(call[0], order_a), permute(call[1], order_b), static_cast<int>(dims_a.size()));
}

Tensor addbmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta, double alpha) {
    constexpr const char* name = "addbmm";
    const CheckedArgs call = pair_of(name, a, b);
    checks::dims(name, "the first tensor", call[0], 3, "(B, M, K)");
    checks::dims(name, "the second tensor", call[1], 3, "(B, K, N)");
    return sum_of_products(name, x, sum(bmm(call[0], call[1]), 0), beta, alpha);
}

Tensor cov(const Tensor& given, double correction) {
    constexpr const char* name = "cov";
    const CheckedArgs call(name, {arg::floating("the tensor", given)});
    const Tensor& x = call[0];
    if (x.dims() > 2)
        throw InvalidArgument(
            fmt::format("{}: the tensor has the shape {}; expected (variables, observations)", name, x.shape().str()));
    const Tensor lines = widened(x.dims() == 2 ? x : x.reshape({1, x.numel()}));
    const Tensor centered = lines - mean(lines, 1, true);
    const double divisor = std::max(static_cast<double>(lines.size(1)) - correction, 0.0);
    const Tensor all = (matmul(centered, centered.transpose(0, 1)) / divisor).to(x.dtype());
    return x.dims() == 2 ? all : all.reshape({});
}

Tensor corrcoef(const Tensor& given) {
    constexpr const char* name = "corrcoef";
    const CheckedArgs call(name, {arg::floating("the tensor", given)});
    const Tensor all = cov(widened(call[0]));
    if (all.dims() == 0) return (all / all).to(call[0].dtype());
    const Tensor deviations = sqrt(diagonal(all));
    return clamp(all / deviations.unsqueeze(1) / deviations, -1, 1).to(call[0].dtype());
}

Tensor pdist(const Tensor& given, double p) {
    constexpr const char* name = "pdist";
    const CheckedArgs call(name, {arg::floating("input", given)});
    const Tensor& x = call[0];
    checks::dims(name, "input", x, 2, "(N, M)");
    checks::not_rows(name, x, 0);
    const Tensor pairs = triu_indices(x.size(0), x.size(0), 1, x.device());
    return norm(index_select(x, 0, pairs.select(0, 0)) - index_select(x, 0, pairs.select(0, 1)), p, 1).tag_batch(false);
}

Tensor trapezoid(const Tensor& given, double dx, int dim) {
    constexpr const char* name = "trapezoid";
    const CheckedArgs call(name, {arg::floating("y", given)});
    const int along = wrap_dim(dim, call[0].dims(), name);
    checks::not_rows(name, call[0], along);
    const Tensor y = widened(call[0]);
    return (sum(y.slice(along, 1) + y.slice(along, 0, -1), along) * (dx / 2)).to(call[0].dtype());
}

Tensor trapezoid(const Tensor& given_y, const Tensor& given_x, int dim) {
    constexpr const char* name = "trapezoid";
    const CheckedArgs call = pair_of(name, given_y, given_x);
    const int along = wrap_dim(dim, call[0].dims(), name);
    checks::not_rows(name, call[0], along);
    const Tensor y = widened(call[0]);
    Tensor x = widened(call[1]);
    if (x.dims() == 1) {
        Shape line;
        for (int d = 0; d < y.dims(); ++d) line.push_back(d == along ? x.size(0) : 1);
        x = x.reshape(line);
    }
    checks::not_rows(name, x, along);
    const Tensor steps = x.slice(along, 1) - x.slice(along, 0, -1);
    return (sum((y.slice(along, 1) + y.slice(along, 0, -1)) * steps, along) * 0.5).to(call[0].dtype());
}

}  // namespace lockstep
