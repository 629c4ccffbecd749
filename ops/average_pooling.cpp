// Average pooling, made of views and sums.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// Number of windows along a dimension, and how many of the elements of each are not padding.
struct Windows {
    std::int64_t count, size, stride, padding, length;
    std::int64_t real(std::int64_t window) const {
        const std::int64_t first = window * stride - padding;
        return std::min(first + size, length) - std::max<std::int64_t>(first, 0);
    }
};

Windows windows_of(std::int64_t length, int size, int stride, int padding, const Tensor& x) {
    if (size < 1 || stride < 1 || padding < 0 || 2 * padding > size)
        throw InvalidArgument(
            fmt::format("avg_pool2d: invalid window (kernel_size {}, stride {}, padding {}); expected "
                        "positive sizes, and padding of at most half the window",
                        size, stride, padding));
    const std::int64_t room = length + 2 * padding - size;
    if (room < 0)
        throw InvalidArgument(fmt::format("avg_pool2d: the window of {} does not fit into input {} with padding {}",
                                          size, x.shape().str(), padding));
    return {room / stride + 1, size, stride, padding, length};
}

/// Numbers of real elements of windows, as a tensor that broadcasts along dimension `dim` of images.
Tensor real_counts(const Windows& windows, int dim, const Tensor& like_images) {
    std::vector<double> counts;
    for (std::int64_t i = 0; i < windows.count; ++i) counts.push_back(static_cast<double>(windows.real(i)));
    Shape shape{1, 1, 1, 1};
    shape[dim] = windows.count;
    return Tensor::from(counts, shape).to(like_images.dtype()).to(like_images.device());
}

/// Part `index` of `count` parts of `length` elements, which overlap if `count` does not divide it.
std::pair<std::int64_t, std::int64_t> part(std::int64_t index, std::int64_t count, std::int64_t length) {
    return {index * length / count, ((index + 1) * length + count - 1) / count};
}

void require_parts(const char* name, const Tensor& x, Pair parts) {
    checks::dims(name, "input", x, 4, "(N, C, H, W)");
    if (parts.h < 1 || parts.w < 1 || x.size(2) < 1 || x.size(3) < 1)
        throw InvalidArgument(fmt::format("{}: cannot make {} x {} elements of input {}; expected positive sizes", name,
                                          parts.h, parts.w, x.shape().str()));
}

}  // namespace

Tensor avg_pool2d(const Tensor& given, Pair kernel_size, std::optional<Pair> step, Pair padding,
                  bool count_include_pad) {
    const CheckedArgs call("avg_pool2d", {arg::floating("input", given)});
    checks::dims("avg_pool2d", "input", call[0], 4, "(N, C, H, W)");
    const Tensor x = widened(call[0]);
    const Pair stride = step.value_or(kernel_size);
    const Windows rows = windows_of(x.size(2), kernel_size.h, stride.h, padding.h, x);
    const Windows columns = windows_of(x.size(3), kernel_size.w, stride.w, padding.w, x);

    const auto divides = [](const Windows& w) {
        return w.size == w.stride && w.padding == 0 && w.length % w.size == 0;
    };
    if (divides(rows) && divides(columns))  // one reduction
        return adaptive_avg_pool2d(call[0], {static_cast<int>(rows.count), static_cast<int>(columns.count)});

    const bool padded = padding.h > 0 || padding.w > 0;
    const Tensor source = padded ? pad(x, {padding.w, padding.w, padding.h, padding.h}) : x;
    Tensor total;
    for (std::int64_t i = 0; i < rows.size; ++i) {
        const Tensor lines = source.slice(2, i, i + (rows.count - 1) * rows.stride + 1, rows.stride);
        for (std::int64_t j = 0; j < columns.size; ++j) {
            const Tensor elements = lines.slice(3, j, j + (columns.count - 1) * columns.stride + 1, columns.stride);
            total = total.defined() ? total + elements : elements;
        }
    }
    const Tensor y = padded && !count_include_pad ? total / (real_counts(rows, 2, x) * real_counts(columns, 3, x))
                                                  : total / static_cast<double>(rows.size * columns.size);
    return tagged(y.to(call[0].dtype()), call[0].is_batch());
}

Tensor adaptive_avg_pool2d(const Tensor& given, Pair output_size) {
    constexpr const char* name = "adaptive_avg_pool2d";
    const CheckedArgs call(name, {arg::floating("input", given)});
    const Tensor x = widened(call[0]);
    require_parts(name, x, output_size);
    const std::int64_t h = x.size(2), w = x.size(3), out_h = output_size.h, out_w = output_size.w;
    Tensor y;
    if (h % out_h == 0 && w % out_w == 0) {
        y = mean(x.reshape({x.size(0), x.size(1), out_h, h / out_h, out_w, w / out_w}), {3, 5});
    } else {
        std::vector<Tensor> lines;
        for (std::int64_t i = 0; i < out_h; ++i) {
            const auto [top, bottom] = part(i, out_h, h);
            const Tensor line = mean(x.slice(2, top, bottom), 2, true);
            std::vector<Tensor> elements;
            for (std::int64_t j = 0; j < out_w; ++j) {
                const auto [left, right] = part(j, out_w, w);
                elements.push_back(mean(line.slice(3, left, right), 3, true));
            }
            lines.push_back(cat(elements, 3));
        }
        y = cat(lines, 2);
    }
    return tagged(y.to(call[0].dtype()), call[0].is_batch());
}

Tensor adaptive_max_pool2d(const Tensor& given, Pair output_size) {
    constexpr const char* name = "adaptive_max_pool2d";
    const CheckedArgs call(name, {arg::floating("input", given)});
    const Tensor& x = call[0];
    require_parts(name, x, output_size);
    const std::int64_t h = x.size(2), w = x.size(3), out_h = output_size.h, out_w = output_size.w;
    constexpr std::int64_t largest_window = 255;  // max_pool2d has no larger ones
    if (h % out_h == 0 && w % out_w == 0 && h / out_h * (w / out_w) <= largest_window)
        return max_pool2d(x, {static_cast<int>(h / out_h), static_cast<int>(w / out_w)});
    std::vector<Tensor> lines;
    for (std::int64_t i = 0; i < out_h; ++i) {
        const auto [top, bottom] = part(i, out_h, h);
        std::vector<Tensor> elements;
        for (std::int64_t j = 0; j < out_w; ++j) {
            const auto [left, right] = part(j, out_w, w);
            const Tensor window = x.slice(2, top, bottom).slice(3, left, right);
            elements.push_back(
                (max)(window.reshape({x.size(0), x.size(1), 1, 1, window.size(2) * window.size(3)}), -1).values);
        }
        lines.push_back(cat(elements, 3));
    }
    return tagged(cat(lines, 2), x.is_batch());
}

Tensor local_response_norm(const Tensor& given, int size, double alpha, double beta, double k) {
    constexpr const char* name = "local_response_norm";
    const CheckedArgs call(name, {arg::floating("input", given)});
    const Tensor x = widened(call[0]);
    if (x.dims() < 3)
        throw InvalidArgument(fmt::format("{}: input has shape {}; expected (N, C, L, ...)", name, x.shape().str()));
    if (size < 1) throw InvalidArgument(fmt::format("{}: invalid size ({}); expected a positive number", name, size));
    std::vector<std::int64_t> around(static_cast<std::size_t>(2 * (x.dims() - 2)), 0);
    around.insert(around.end(), {size / 2, (size - 1) / 2});
    const Tensor squares = pad(square(x), around);
    Tensor total = squares.slice(1, 0, x.size(1));
    for (int i = 1; i < size; ++i) total = total + squares.slice(1, i, i + x.size(1));
    const Tensor y = x / pow(total * (alpha / size) + k, beta);
    return tagged(y.to(call[0].dtype()), call[0].is_batch());
}

}  // namespace lockstep
