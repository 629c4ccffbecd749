// Largest elements of windows with gaps, their positions, and the reverse; means of powers. Made of views and
// selections.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/pool_windows.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// 0, 1, ..., count - 1 times `step`, plus `first`.
Tensor window_starts(std::int64_t first, std::int64_t step, std::int64_t count, const Device& device) {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < count; ++i) all.push_back(first + i * step);
    return Tensor::from(all, {count}, device);
}

/// Images (N, C, H, W) of a sequence (N, C, L).
Tensor one_row_images(const char* name, const Tensor& x) {
    checks::dims(name, "input", x, 3, "(N, C, L)");
    return tagged(x.unsqueeze(2), x.is_batch());
}

ValuesAndIndices largest_of_windows(const char* name, const Tensor& x, Pair kernel_size, Pair stride, Pair padding,
                                    bool ceil_mode, Pair dilation) {
    checks::dims(name, "input", x, 4, "(N, C, H, W)");
    const PoolWindows rows(name, x, 2, {kernel_size.h, stride.h, padding.h, dilation.h}, ceil_mode);
    const PoolWindows columns(name, x, 3, {kernel_size.w, stride.w, padding.w, dilation.w}, ceil_mode);
    const Tensor wide =
        pad(x, {padding.w, columns.after(), padding.h, rows.after()}, -std::numeric_limits<double>::infinity());
    std::vector<Tensor> elements;  // one tensor for each position in a window
    for (int i = 0; i < kernel_size.h; ++i)
        for (int j = 0; j < kernel_size.w; ++j) elements.push_back(columns.elements(rows.elements(wide, i), j));
    const ValuesAndIndices largest = (max)(stack(elements, 4), 4);
    const Tensor in_row = floor_divide(largest.indices, kernel_size.w);
    const Tensor row =
        in_row * dilation.h + window_starts(-padding.h, stride.h, rows.count(), x.device()).reshape({rows.count(), 1});
    const Tensor column = (largest.indices - in_row * kernel_size.w) * dilation.w +
                          window_starts(-padding.w, stride.w, columns.count(), x.device());
    // Padding is chosen from windows of -inf only.
    const Tensor inside = clamp(row, 0, x.size(2) - 1) * x.size(3) + clamp(column, 0, x.size(3) - 1);
    return {tagged(largest.values, x.is_batch()), tagged(inside, x.is_batch())};
}

Pair image_part(const Triple& all) { return {all.h, all.w}; }

/// x at the indices of the last `dims` dimensions of zeros (N, C, sizes...).
Tensor unpooled(const char* name, const Tensor& given, const Tensor& given_indices, const Shape& sizes) {
    const CheckedArgs call(name, {arg::floating("input", given), arg::any("indices", given_indices)});
    const Tensor &x = call[0], &indices = call[1];
    const int dims = sizes.dims() + 2;
    checks::dims(name, "input", x, dims, dims == 3 ? "(N, C, L)" : dims == 4 ? "(N, C, H, W)" : "(N, C, D, H, W)");
    if (!(indices.shape() == x.shape()))
        throw InvalidArgument(fmt::format("{}: input {} and indices {} differ in shape; expected equal shapes", name,
                                          x.shape().str(), indices.shape().str()));
    Shape shape{x.size(0), x.size(1)};
    for (const std::int64_t size : sizes) {
        if (size < 1)
            throw InvalidArgument(
                fmt::format("{}: invalid output_size {}; expected positive numbers", name, sizes.str()));
        shape.push_back(size);
    }
    const Tensor none = Tensor::zeros({x.size(0), x.size(1), sizes.numel()}, x.dtype(), x.device());
    const Tensor filled = scatter(tagged(none, x.is_batch()), 2, indices.flatten(2), x.flatten(2));
    return tagged(filled.reshape(shape), x.is_batch());
}

/// The number of elements from which max pooling makes `size`.
std::int64_t before_pooling(std::int64_t size, int kernel_size, int stride, int padding) {
    return (size - 1) * stride - 2 * std::int64_t{padding} + kernel_size;
}

/// The p-th root of sums, from means of windows of `area` elements. By PyTorch's formula, the gradient of a sum of 0
/// is 0.
Tensor root_of_sums(const Tensor& means, double area, double p) {
    return pow(sign(means.detach()) * relu(abs(means)) * area, 1 / p);
}

void require_power(const char* name, double p) {
    if (!(p > 0)) throw InvalidArgument(fmt::format("{}: invalid norm_type ({}); expected a positive number", name, p));
}

}  // namespace

PoolWindows::PoolWindows(const char* name, const Tensor& x, int dim, const PoolWindow& given, bool ceil_mode)
    : window_(given), dim_(dim), length_(x.size(dim)) {
    if (given.size < 1 || given.stride < 1 || given.dilation < 1 || given.padding < 0 || 2 * given.padding > given.size)
        throw InvalidArgument(
            fmt::format("{}: invalid window (kernel_size {}, stride {}, padding {}, dilation {}); expected positive "
                        "sizes, and padding of at most half the window",
                        name, given.size, given.stride, given.padding, given.dilation));
    const std::int64_t room = length_ + 2 * std::int64_t{given.padding} - reach();
    if (room < 0)
        throw InvalidArgument(fmt::format("{}: the window of {} does not fit into input {} with padding {}", name,
                                          reach(), x.shape().str(), given.padding));
    count_ = room / given.stride + 1;
    // One more window where some elements are left, unless it begins after the elements and the padding before them.
    if (ceil_mode && room % given.stride != 0 && count_ * given.stride < length_ + given.padding) ++count_;
}

std::int64_t PoolWindows::after() const {
    return std::max<std::int64_t>((count_ - 1) * window_.stride + reach() - length_ - window_.padding, 0);
}

Tensor PoolWindows::elements(const Tensor& padded, std::int64_t i) const {
    const std::int64_t first = i * window_.dilation;
    return padded.slice(dim_, first, first + (count_ - 1) * window_.stride + 1, window_.stride);
}

std::int64_t PoolWindows::counted(std::int64_t window, bool include_pad) const {
    const std::int64_t margin = include_pad ? window_.padding : 0, first = window * window_.stride - window_.padding;
    return std::min(first + window_.size, length_ + margin) - std::max(first, -margin);
}

ValuesAndIndices max_pool2d_with_indices(const Tensor& x, Pair kernel_size, std::optional<Pair> stride, Pair padding,
                                         bool ceil_mode, Pair dilation) {
    constexpr const char* name = "max_pool2d_with_indices";
    const CheckedArgs call(name, {arg::floating("input", x)});
    return largest_of_windows(name, call[0], kernel_size, stride.value_or(kernel_size), padding, ceil_mode, dilation);
}

ValuesAndIndices max_pool1d_with_indices(const Tensor& x, int kernel_size, std::optional<int> stride, int padding,
                                         bool ceil_mode, int dilation) {
    constexpr const char* name = "max_pool1d_with_indices";
    const CheckedArgs call(name, {arg::floating("input", x)});
    const ValuesAndIndices found =
        largest_of_windows(name, one_row_images(name, call[0]), {1, kernel_size}, {1, stride.value_or(kernel_size)},
                           {0, padding}, ceil_mode, {1, dilation});
    return {found.values.squeeze(2), found.indices.squeeze(2)};
}

ValuesAndIndices max_pool3d_with_indices(const Tensor& given, Triple kernel_size, std::optional<Triple> step,
                                         Triple padding, bool ceil_mode, Triple dilation) {
    constexpr const char* name = "max_pool3d_with_indices";
    const CheckedArgs call(name, {arg::floating("input", given)});
    const Tensor& x = call[0];
    checks::dims(name, "input", x, 5, "(N, C, D, H, W)");
    const Triple stride = step.value_or(kernel_size);
    const std::int64_t n = x.size(0), channels = x.size(1), depth = x.size(2);
    // First the planes, then along the depth.
    const Tensor planes = tagged(x.reshape({n, channels * depth, x.size(3), x.size(4)}), x.is_batch());
    const ValuesAndIndices of_planes = largest_of_windows(name, planes, image_part(kernel_size), image_part(stride),
                                                          image_part(padding), ceil_mode, image_part(dilation));
    const std::int64_t h = of_planes.values.size(2), w = of_planes.values.size(3);
    const auto columns = [&](const Tensor& of) {
        return tagged(of.reshape({n, channels, depth, h * w}), x.is_batch());
    };
    const ValuesAndIndices along = largest_of_windows(name, columns(of_planes.values), {kernel_size.d, 1},
                                                      {stride.d, 1}, {padding.d, 0}, ceil_mode, {dilation.d, 1});
    const Tensor plane = floor_divide(along.indices, h * w);
    const Tensor index = gather(columns(of_planes.indices), 2, plane) + plane * (x.size(3) * x.size(4));
    const auto volumes = [&](const Tensor& of) {
        return tagged(of.reshape({n, channels, of.size(2), h, w}), x.is_batch());
    };
    return {volumes(along.values), volumes(index)};
}

Tensor max_unpool1d(const Tensor& x, const Tensor& indices, int kernel_size, std::optional<int> stride, int padding,
                    std::optional<int> output_size) {
    const int step = stride.value_or(kernel_size);
    const std::int64_t size = x.defined() && x.dims() == 3 ? before_pooling(x.size(2), kernel_size, step, padding) : 1;
    return unpooled("max_unpool1d", x, indices, {output_size ? *output_size : size});
}

Tensor max_unpool2d(const Tensor& x, const Tensor& indices, Pair kernel_size, std::optional<Pair> stride, Pair padding,
                    std::optional<Pair> output_size) {
    const Pair step = stride.value_or(kernel_size);
    Shape sizes{1, 1};
    if (output_size)
        sizes = {output_size->h, output_size->w};
    else if (x.defined() && x.dims() == 4)
        sizes = {before_pooling(x.size(2), kernel_size.h, step.h, padding.h),
                 before_pooling(x.size(3), kernel_size.w, step.w, padding.w)};
    return unpooled("max_unpool2d", x, indices, sizes);
}

Tensor max_unpool3d(const Tensor& x, const Tensor& indices, Triple kernel_size, std::optional<Triple> stride,
                    Triple padding, std::optional<Triple> output_size) {
    const Triple step = stride.value_or(kernel_size);
    Shape sizes{1, 1, 1};
    if (output_size)
        sizes = {output_size->d, output_size->h, output_size->w};
    else if (x.defined() && x.dims() == 5)
        sizes = {before_pooling(x.size(2), kernel_size.d, step.d, padding.d),
                 before_pooling(x.size(3), kernel_size.h, step.h, padding.h),
                 before_pooling(x.size(4), kernel_size.w, step.w, padding.w)};
    return unpooled("max_unpool3d", x, indices, sizes);
}

Tensor lp_pool1d(const Tensor& given, double norm_type, int kernel_size, std::optional<int> stride, bool ceil_mode) {
    constexpr const char* name = "lp_pool1d";
    const CheckedArgs call(name, {arg::floating("input", given)});
    require_power(name, norm_type);
    const Tensor x = tagged(widened(call[0]), call[0].is_batch());
    const Tensor means = avg_pool1d(pow(x, norm_type), kernel_size, stride, 0, true, ceil_mode);
    return root_of_sums(means, kernel_size, norm_type).to(call[0].dtype());
}

Tensor lp_pool2d(const Tensor& given, double norm_type, Pair kernel_size, std::optional<Pair> stride, bool ceil_mode) {
    constexpr const char* name = "lp_pool2d";
    const CheckedArgs call(name, {arg::floating("input", given)});
    require_power(name, norm_type);
    const Tensor x = tagged(widened(call[0]), call[0].is_batch());
    const Tensor means = avg_pool2d(pow(x, norm_type), kernel_size, stride, 0, true, ceil_mode);
    return root_of_sums(means, static_cast<double>(kernel_size.h) * kernel_size.w, norm_type).to(call[0].dtype());
}

Tensor lp_pool3d(const Tensor& given, double norm_type, Triple kernel_size, std::optional<Triple> stride,
                 bool ceil_mode) {
    constexpr const char* name = "lp_pool3d";
    const CheckedArgs call(name, {arg::floating("input", given)});
    require_power(name, norm_type);
    const Tensor x = tagged(widened(call[0]), call[0].is_batch());
    const Tensor means = avg_pool3d(pow(x, norm_type), kernel_size, stride, 0, true, ceil_mode);
    const double area = static_cast<double>(kernel_size.d) * kernel_size.h * kernel_size.w;
    return root_of_sums(means, area, norm_type).to(call[0].dtype());
}

}  // namespace lockstep
