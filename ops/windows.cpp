// Padding by elements of the tensor, and sliding windows, made of selections and views.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// Position in a dimension of `size` elements of the element that stands for position i, which may be outside.
std::int64_t source_of(std::int64_t i, std::int64_t size, PaddingMode mode) {
    switch (mode) {
        case PaddingMode::reflect:
            if (i < 0) return -i;
            return i < size ? i : 2 * (size - 1) - i;
        case PaddingMode::circular: return ((i % size) + size) % size;
        default: return std::clamp<std::int64_t>(i, 0, size - 1);
    }
}

/// Largest padding of a dimension of `size` elements.
std::int64_t most_padding(std::int64_t size, PaddingMode mode) {
    constexpr std::int64_t most = std::int64_t{1} << 24;  // every element has an index on the host
    if (mode == PaddingMode::reflect) return size - 1;
    if (mode == PaddingMode::circular) return size;
    return size > 0 ? most : 0;
}

Tensor padded(const Tensor& x, int dim, std::int64_t before, std::int64_t after, PaddingMode mode) {
    if (before == 0 && after == 0) return x;
    const std::int64_t size = x.size(dim), most = most_padding(size, mode);
    for (const std::int64_t one : {before, after})
        if (one > most)
            throw InvalidArgument(fmt::format("pad: invalid padding ({}) of dimension {} of {}; expected at most {}",
                                              one, dim, x.shape().str(), std::max<std::int64_t>(most, 0)));
    if (before < -size || after < -size || size + before + after < 0)
        throw InvalidArgument(
            fmt::format("pad: paddings {} and {} crop dimension {} of {}; expected a size of 0 or more", before, after,
                        dim, x.shape().str()));
    std::vector<std::int64_t> sources;
    for (std::int64_t i = -before; i < size + after; ++i) sources.push_back(source_of(i, size, mode));
    const auto count = static_cast<std::int64_t>(sources.size());
    return index_select(x, dim, Tensor::from(sources, {count}, x.device()));
}

/// Sliding windows over one dimension.
struct SlidingWindows {
    std::int64_t kernel, dilation, padding, stride, count;

    std::int64_t reach() const { return (count - 1) * stride + 1; }
};

/// The windows over `size` elements of dimension `dim` of images.
SlidingWindows windows_over(const char* name, const char* dim, std::int64_t size, int kernel, int dilation, int padding,
                            int stride) {
    const auto require = [&](const char* argument, int value, int least) {
        if (value < least)
            throw InvalidArgument(
                fmt::format("{}: invalid {} ({}); expected at least {}", name, argument, value, least));
    };
    require("kernel_size", kernel, 1);
    require("dilation", dilation, 1);
    require("padding", padding, 0);
    require("stride", stride, 1);
    const std::int64_t wide = size + 2 * std::int64_t{padding};
    const std::int64_t window = std::int64_t{dilation} * (kernel - 1) + 1;
    if (window > wide)
        throw InvalidArgument(
            fmt::format("{}: a window of {} elements is larger than the {} ({} with padding); expected "
                        "at least one window",
                        name, window, dim, wide));
    return {kernel, dilation, padding, stride, (wide - window) / stride + 1};
}

/// x with `stride - 1` zeros after every element of `dim`.
Tensor spread(const Tensor& x, int dim, std::int64_t stride) {
    if (stride == 1) return x;
    Shape shape = x.shape();
    shape[dim] *= stride;
    std::vector<std::int64_t> after(2 * static_cast<std::size_t>(x.dims() - dim), 0);
    after.back() = stride - 1;  // the new dimension follows `dim`
    return pad(x.unsqueeze(dim + 1), after).reshape(shape);
}

}  // namespace

Tensor pad(const Tensor& given, const std::vector<std::int64_t>& amounts, PaddingMode mode) {
    if (mode == PaddingMode::zeros) return pad(given, amounts);
    const CheckedArgs call("pad", {arg::any("input", given)});
    Tensor y = call[0];
    const std::size_t pairs = amounts.size() / 2;
    if (amounts.size() % 2 != 0 || pairs > static_cast<std::size_t>(y.dims()))
        throw InvalidArgument(
            fmt::format("pad: {} numbers for input {}; expected two per dimension, before and after, "
                        "from the last dimension on",
                        amounts.size(), y.shape().str()));
    for (std::size_t pair = 0; pair < pairs; ++pair)
        y = padded(y, y.dims() - 1 - static_cast<int>(pair), amounts[2 * pair], amounts[2 * pair + 1], mode);
    return y;
}

Tensor unfold(const Tensor& given, Pair kernel_size, Pair dilation, Pair padding, Pair stride) {
    constexpr const char* name = "unfold";
    const CheckedArgs call(name, {arg::any("input", given)});
    const Tensor& x = call[0];
    checks::dims(name, "input", x, 4, "(N, C, H, W)");
    const SlidingWindows rows = windows_over(name, "height", x.size(2), kernel_size.h, dilation.h, padding.h, stride.h);
    const SlidingWindows columns =
        windows_over(name, "width", x.size(3), kernel_size.w, dilation.w, padding.w, stride.w);
    const Tensor wide = pad(x, {padding.w, padding.w, padding.h, padding.h});
    std::vector<Tensor> elements;  // one tensor for each position in a window
    for (std::int64_t h = 0; h < rows.kernel; ++h)
        for (std::int64_t w = 0; w < columns.kernel; ++w) {
            const std::int64_t top = h * rows.dilation, left = w * columns.dilation;
            elements.push_back(wide.slice(2, top, top + rows.reach(), rows.stride)
                                   .slice(3, left, left + columns.reach(), columns.stride));
        }
    return stack(elements, 2)
        .reshape({x.size(0), x.size(1) * rows.kernel * columns.kernel, rows.count * columns.count});
}

Tensor fold(const Tensor& given, Pair output_size, Pair kernel_size, Pair dilation, Pair padding, Pair stride) {
    constexpr const char* name = "fold";
    const CheckedArgs call(name, {arg::floating("input", given)});
    const Tensor& x = call[0];
    checks::dims(name, "input", x, 3, "(N, C kh kw, L)");
    if (output_size.h < 1 || output_size.w < 1)
        throw InvalidArgument(fmt::format("{}: invalid output_size ({} x {}); expected positive numbers", name,
                                          output_size.h, output_size.w));
    const SlidingWindows rows =
        windows_over(name, "height", output_size.h, kernel_size.h, dilation.h, padding.h, stride.h);
    const SlidingWindows columns =
        windows_over(name, "width", output_size.w, kernel_size.w, dilation.w, padding.w, stride.w);
    const std::int64_t area = rows.kernel * columns.kernel, count = rows.count * columns.count;
    if (x.size(1) % area != 0 || x.size(2) != count)
        throw InvalidArgument(
            fmt::format("{}: input {} does not fit; expected dimension 1 a multiple of {}, the elements "
                        "of a window, and dimension 2 of size {}, the number of windows",
                        name, x.shape().str(), area, count));
    const Tensor windows = x.reshape({x.size(0), x.size(1) / area, area, rows.count, columns.count});
    const std::int64_t height = output_size.h + 2 * rows.padding, width = output_size.w + 2 * columns.padding;
    Tensor y;  // with its padding
    for (std::int64_t h = 0; h < rows.kernel; ++h)
        for (std::int64_t w = 0; w < columns.kernel; ++w) {
            const Tensor part = windows.select(2, h * columns.kernel + w);
            const Tensor wide = spread(spread(part, 2, rows.stride), 3, columns.stride);
            const std::int64_t top = h * rows.dilation, left = w * columns.dilation;
            const Tensor placed = pad(wide, {left, width - left - wide.size(3), top, height - top - wide.size(2)});
            y = y.defined() ? add(y, placed) : placed;
        }
    return y.slice(2, rows.padding, height - rows.padding).slice(3, columns.padding, width - columns.padding);
}

}  // namespace lockstep
