// Average pooling, made of views and sums.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/pool_windows.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// Numbers of elements of windows that count, as a tensor that broadcasts along dimension `dim` of images.
Tensor counts_of(const PoolWindows& windows, bool include_pad, int dim, const Tensor& like_images) {
    std::vector<double> counts;
    for (std::int64_t i = 0; i < windows.count(); ++i)
        counts.push_back(static_cast<double>(windows.counted(i, include_pad)));
    Shape shape{1, 1, 1, 1};
    shape[dim] = windows.count();
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

Tensor avg_pool2d(const Tensor& given, Pair kernel_size, std::optional<Pair> step, Pair padding, bool count_include_pad,
                  bool ceil_mode, std::optional<std::int64_t> divisor_override) {
    constexpr const char* name = "avg_pool2d";
    const CheckedArgs call(name, {arg::floating("input", given)});
    checks::dims(name, "input", call[0], 4, "(N, C, H, W)");
    if (divisor_override && *divisor_override == 0)
        throw InvalidArgument(fmt::format("{}: invalid divisor_override (0); expected another number", name));
    const Tensor x = widened(call[0]);
    const Pair stride = step.value_or(kernel_size);
    const PoolWindows rows(name, x, 2, {kernel_size.h, stride.h, padding.h}, ceil_mode);
    const PoolWindows columns(name, x, 3, {kernel_size.w, stride.w, padding.w}, ceil_mode);

    const auto divides = [](std::int64_t length, int size, int every, int around) {
        return size == every && around == 0 && length % size == 0;
    };
    if (!divisor_override && divides(x.size(2), kernel_size.h, stride.h, padding.h) &&
        divides(x.size(3), kernel_size.w, stride.w, padding.w))  // one reduction
        return adaptive_avg_pool2d(call[0], {static_cast<int>(rows.count()), static_cast<int>(columns.count())});

    const std::int64_t below = rows.after(), right = columns.after();
    const bool padded = padding.h > 0 || padding.w > 0 || below > 0 || right > 0;
    const Tensor source = padded ? pad(x, {padding.w, right, padding.h, below}) : x;
    Tensor total;
    for (int i = 0; i < kernel_size.h; ++i) {
        const Tensor lines = rows.elements(source, i);
        for (int j = 0; j < kernel_size.w; ++j) {
            const Tensor elements = columns.elements(lines, j);
            total = total.defined() ? total + elements : elements;
        }
    }
    const bool smaller_windows = below > padding.h || right > padding.w || (padded && !count_include_pad);
    Tensor y;
    if (divisor_override)
        y = total / static_cast<double>(*divisor_override);
    else if (smaller_windows)
        y = total / (counts_of(rows, count_include_pad, 2, x) * counts_of(columns, count_include_pad, 3, x));
    else
        y = total / static_cast<double>(std::int64_t{kernel_size.h} * kernel_size.w);
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

Tensor adaptive_max_pool3d(const Tensor& given, Triple output_size) {
    constexpr const char* name = "adaptive_max_pool3d";
    const CheckedArgs call(name, {arg::floating("input", given)});
    const Tensor& x = call[0];
    checks::dims(name, "input", x, 5, "(N, C, D, H, W)");
    if (output_size.d < 1 || x.size(2) < 1)
        throw InvalidArgument(fmt::format("{}: cannot make {} planes of input {}; expected positive sizes", name,
                                          output_size.d, x.shape().str()));
    const std::int64_t n = x.size(0), channels = x.size(1), depth = x.size(2);
    const Tensor planes = tagged(x.reshape({n, channels * depth, x.size(3), x.size(4)}), x.is_batch());
    const Tensor images = adaptive_max_pool2d(planes, {output_size.h, output_size.w});
    const Tensor volume = images.reshape({n, channels, depth, images.size(2), images.size(3)});
    std::vector<Tensor> slices;
    for (std::int64_t i = 0; i < output_size.d; ++i) {
        const auto [front, back] = part(i, output_size.d, depth);
        slices.push_back((max)(volume.slice(2, front, back), 2, true).values);
    }
    return tagged(cat(slices, 2), x.is_batch());
}

}  // namespace lockstep
