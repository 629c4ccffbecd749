// Views: tensors that share storage.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/recycled.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

namespace {

/// A tensor on the storage of `base` (made strided) with another arrangement.
Tensor view(const Tensor& base, const Shape& shape, const Shape& strides, std::int64_t offset, bool batch) {
    make_strided(base);
    auto impl = recycled::make_shared<TensorImpl>();
    impl->storage = base.impl()->storage;
    impl->meta = base.impl()->meta;
    impl->meta.shape = shape;
    impl->meta.strides = strides;
    impl->meta.offset = offset;
    impl->meta.batch = batch;
    return Tensor(std::move(impl));
}

std::int64_t offset_of(const Tensor& tensor) { return tensor.impl()->meta.offset; }

/// Strides for viewing the elements of (`from`, `strides`) as `shape` in row-major order; nullopt if a copy is needed.
std::optional<Shape> reshaped_strides(const Shape& from, const Shape& strides, const Shape& shape) {
    Shape result = shape;
    int j = shape.dims() - 1;
    int i = from.dims() - 1;
    while (i >= 0) {
        // A run of old dimensions that is row-major in itself ...
        const std::int64_t inner = strides[i];
        std::int64_t count = from[i];
        while (i > 0 && (from[i - 1] == 1 || count == 1 || strides[i - 1] == inner * count)) {
            if (count == 1 && from[i - 1] != 1 && strides[i - 1] != inner * count) break;
            count *= from[--i];
        }
        // ... must be covered exactly by new dimensions.
        std::int64_t covered = 1;
        while (j >= 0 && (covered < count || shape[j] == 1)) {
            result[j] = inner * covered;
            covered *= shape[j--];
        }
        if (covered != count) return std::nullopt;
        --i;
    }
    while (j >= 0) {
        if (shape[j] != 1) return std::nullopt;
        result[j--] = 1;
    }
    return result;
}

}  // namespace

Tensor Tensor::reshape(const Shape& wanted) const {
    const ApiScope call("reshape");
    Shape target = wanted;
    int open = -1;
    std::int64_t known = 1;
    for (int i = 0; i < target.dims(); ++i) {
        if (target[i] < -1)
            throw InvalidArgument(
                fmt::format("reshape to {}: a size is negative; expected sizes of 0 or more, or -1", wanted.str()));
        if (target[i] == -1) {
            if (open >= 0)
                throw InvalidArgument(
                    fmt::format("reshape to {}: more than one size is -1; expected at most one", wanted.str()));
            open = i;
        } else {
            known *= target[i];
        }
    }
    if (open >= 0) {
        if (known == 0 || numel() % known != 0)
            throw InvalidArgument(fmt::format(
                "reshape of {} to {}: {} elements are not a multiple of {}; expected a size that divides them",
                shape().str(), wanted.str(), numel(), known));
        target[open] = numel() / known;
    }
    if (target.numel() != numel())
        throw InvalidArgument(fmt::format("reshape of {} to {}: {} elements do not fill {}; expected equal products",
                                          shape().str(), wanted.str(), numel(), target.numel()));
    if (target == shape()) return *this;
    make_strided(*this);
    const bool batch = is_batch() && target.dims() > 0 && target[0] == size(0);
    const std::optional<Shape> strides =
        numel() == 0 ? target.contiguous_strides() : reshaped_strides(shape(), impl_->meta.strides, target);
    if (!strides) return contiguous().reshape(target);
    const Tensor result = view(*this, target, *strides, offset_of(*this), batch);
    if (needs_autograd({*this}))
        add_autograd_node("reshape", {*this}, {result},
                          BackwardFunction::composed([origin = shape(), tag = is_batch()](const auto& gradients) {
                              return std::vector<Tensor>{gradients[0].reshape(origin).tag_batch(tag)};
                          }));
    return result;
}

Tensor Tensor::flatten(int start_dim, int end_dim) const {
    if (dims() == 0) return reshape({1});
    const int first = wrap_dim(start_dim, dims(), "flatten");
    const int last = wrap_dim(end_dim, dims(), "flatten");
    if (first > last)
        throw InvalidArgument(fmt::format(
            "flatten: start dimension {} is after end dimension {}; expected start <= end", start_dim, end_dim));
    Shape target;
    for (int i = 0; i < first; ++i) target.push_back(size(i));
    std::int64_t product = 1;
    for (int i = first; i <= last; ++i) product *= size(i);
    target.push_back(product);
    for (int i = last + 1; i < dims(); ++i) target.push_back(size(i));
    return reshape(target);
}

Tensor Tensor::transpose(int dim0, int dim1) const {
    const int a = wrap_dim(dim0, dims(), "transpose");
    const int b = wrap_dim(dim1, dims(), "transpose");
    if (a == b) return *this;
    make_strided(*this);
    Shape sizes = shape();
    Shape steps = impl_->meta.strides;
    std::swap(sizes[a], sizes[b]);
    std::swap(steps[a], steps[b]);
    const Tensor result = view(*this, sizes, steps, offset_of(*this), is_batch() && a != 0 && b != 0);
    if (needs_autograd({*this}))
        add_autograd_node("transpose", {*this}, {result},
                          BackwardFunction::composed([a, b, tag = is_batch()](const auto& gradients) {
                              return std::vector<Tensor>{gradients[0].transpose(a, b).tag_batch(tag)};
                          }));
    return result;
}

namespace {

/// dy in a tensor of zeros, where slice() read its input.
Tensor slice_gradient(const Tensor& dy, const Shape& origin, bool batch, int dim, std::int64_t start, std::int64_t end,
                      std::int64_t step) {
    const Tensor whole = [&] {
        const NoGrad no_grad;
        const Tensor zeros = Tensor::zeros(origin, dy.dtype(), dy.device()).tag_batch(batch);
        zeros.slice(dim, start, end, step).copy_(dy);
        return zeros;
    }();
    if (needs_autograd({dy}))
        add_autograd_node("slice", {dy}, {whole},
                          BackwardFunction::composed([=, tag = dy.is_batch()](const auto& gradients) {
                              return std::vector<Tensor>{gradients[0].slice(dim, start, end, step).tag_batch(tag)};
                          }));
    return whole;
}

/// dy summed over the dimensions along which expand() repeated its input, which are kept with size 1.
Tensor expand_gradient(const Tensor& dy, std::uint32_t summed) {
    Shape kept = dy.shape();
    for (int i = 0; i < kept.dims(); ++i)
        if (summed >> i & 1u) kept[i] = 1;
    const Tensor sums = apply_one(Sum{summed}, {dy}, TensorMeta::contiguous(dy.dtype(), kept));
    if (needs_autograd({dy}))
        add_autograd_node("expand", {dy}, {sums},
                          BackwardFunction::composed([origin = dy.shape(), tag = dy.is_batch()](const auto& gradients) {
                              return std::vector<Tensor>{gradients[0].expand(origin).tag_batch(tag)};
                          }));
    return sums;
}

}  // namespace

Tensor Tensor::slice(int dim, std::int64_t start, std::int64_t end, std::int64_t step) const {
    const int d = wrap_dim(dim, dims(), "slice");
    if (step < 1)
        throw InvalidArgument(fmt::format("slice of dimension {} of {}: invalid step ({}); expected a positive number",
                                          dim, shape().str(), step));
    const auto within = [length = size(d)](std::int64_t index) {
        return std::clamp<std::int64_t>(index < 0 ? index + length : index, 0, length);
    };
    start = within(start);
    end = std::max(start, within(end));
    make_strided(*this);
    Shape sizes = shape();
    Shape steps = impl_->meta.strides;
    sizes[d] = ceil_div(end - start, step);
    const std::int64_t offset = offset_of(*this) + start * steps[d];
    if (sizes[d] > 1) steps[d] *= step;
    const Tensor result = view(*this, sizes, steps, offset, is_batch() && d != 0);
    if (needs_autograd({*this}))
        add_autograd_node(
            "slice", {*this}, {result},
            BackwardFunction::composed(
                [origin = shape(), tag = is_batch(), d, start, end, step](const auto& gradients) {
                    return std::vector<Tensor>{slice_gradient(gradients[0], origin, tag, d, start, end, step)};
                }));
    return result;
}

Tensor Tensor::select(int dim, std::int64_t index) const {
    const int d = wrap_dim(dim, dims(), "select");
    const std::int64_t row = index < 0 ? index + size(d) : index;
    if (row < 0 || row >= size(d))
        throw InvalidArgument(
            fmt::format("select: index {} of dimension {} of {} is out of range; expected 0, 1, ... from the front or "
                        "-1, -2, ... from the end",
                        index, dim, shape().str()));
    return slice(d, row, row + 1).squeeze(d);
}

Tensor Tensor::expand(const Shape& wanted) const {
    const int shift = wanted.dims() - dims();
    if (shift < 0)
        throw InvalidArgument(fmt::format("expand of {} to {}: too few dimensions; expected at least as many",
                                          shape().str(), wanted.str()));
    Shape target = wanted;
    for (int i = shift; i < target.dims(); ++i)
        if (target[i] == -1) target[i] = size(i - shift);
    make_strided(*this);
    Shape steps = target;
    std::uint32_t summed = 0;
    for (int i = 0; i < target.dims(); ++i) {
        const std::int64_t own = i < shift ? 1 : size(i - shift);
        if (target[i] < 0 || (own != target[i] && own != 1))
            throw InvalidArgument(
                fmt::format("expand of {} to {}: sizes differ in dimension {}; expected equal sizes, or 1 before",
                            shape().str(), target.str(), i));
        steps[i] = i < shift || own != target[i] ? 0 : impl_->meta.strides[i - shift];
        if (i < shift || own != target[i]) summed |= 1u << i;
    }
    const Tensor result = view(*this, target, steps, offset_of(*this), is_batch() && shift == 0 && !(summed & 1u));
    if (needs_autograd({*this}))
        add_autograd_node(
            "expand", {*this}, {result},
            BackwardFunction::composed([origin = shape(), tag = is_batch(), summed](const auto& gradients) {
                return std::vector<Tensor>{expand_gradient(gradients[0], summed).reshape(origin).tag_batch(tag)};
            }));
    return result;
}

Tensor Tensor::squeeze(int dim) const {
    const int d = wrap_dim(dim, dims(), "squeeze");
    if (size(d) != 1) return *this;
    Shape target = shape();
    target.erase(d);
    const Tensor result = reshape(target);
    return d == 0 ? result.tag_batch(false) : result;
}

Tensor Tensor::unsqueeze(int dim) const {
    const int d = wrap_dim(dim, dims() + 1, "unsqueeze");
    Shape target = shape();
    target.insert(d, 1);
    const Tensor result = reshape(target);
    return d == 0 ? result.tag_batch(false) : result;
}

}  // namespace lockstep
