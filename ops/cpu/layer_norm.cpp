// Normalisation of the last dimensions, row by row. Sums are of doubles.
#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/nn_operations.h"

namespace lockstep::cpu {
namespace {

/// Consecutive rows of `size` elements.
struct LayerRows {
    std::int64_t rows = 1, size = 1;

    LayerRows(const Shape& shape, int dims) {
        for (int i = 0; i < shape.dims(); ++i) (i < shape.dims() - dims ? rows : size) *= shape[i];
    }
    /// Calls work(row) for all of them, in parallel.
    template <class Work>
    void for_all(int threads, const Work& work) const {
        for_parts(worthwhile_threads(threads, rows * size), rows, 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row) work(row);
        });
    }
};

/// Sum of value(i) for i below `count`, in an order that depends only on `count`.
template <class F>
double sum_in_lanes(std::int64_t count, const F& value) {
    constexpr std::int64_t width = 8;
    std::array<double, width> lanes{};
    std::int64_t i = 0;
    for (; i + width <= count; i += width)
        for (std::int64_t lane = 0; lane < width; ++lane) lanes[static_cast<std::size_t>(lane)] += value(i + lane);
    for (; i < count; ++i) lanes[static_cast<std::size_t>(i % width)] += value(i);
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

std::unique_ptr<Kernel> make_layer_norm(const LayerNormForward& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([layer = LayerRows(request.in[0].shape, operation.dims), eps = operation.eps,
                            threads = request.threads](const KernelArgs& call) {
            const T *weight = call.input<T>(1), *bias = call.input<T>(2);
            T *means = call.output<T>(1), *deviations = call.output<T>(2);
            layer.for_all(threads, [&](std::int64_t row) {
                const T* x = call.input<T>(0) + row * layer.size;
                T* y = call.output<T>(0) + row * layer.size;
                const auto count = static_cast<double>(layer.size);
                const double mean =
                    sum_in_lanes(layer.size, [&](std::int64_t i) { return static_cast<double>(x[i]); }) / count;
                const double m2 = sum_in_lanes(layer.size, [&](std::int64_t i) {
                    const double difference = static_cast<double>(x[i]) - mean;
                    return difference * difference;
                });
                const T middle = static_cast<T>(mean), deviation = static_cast<T>(1 / std::sqrt(m2 / count + eps));
                for (std::int64_t i = 0; i < layer.size; ++i)
                    y[i] = element::normalize(x[i], middle, element::or_else(weight, i, T(1)) * deviation,
                                              element::or_else(bias, i, T(0)));
                if (means) means[row] = middle;
                if (deviations) deviations[row] = deviation;
            });
        });
    });
}

std::unique_ptr<Kernel> make_layer_norm_backward_data(const LayerNormBackwardData& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([layer = LayerRows(request.in[0].shape, operation.dims),
                            threads = request.threads](const KernelArgs& call) {
            const T* weight = call.input<T>(4);
            layer.for_all(threads, [&](std::int64_t row) {
                const T *dy = call.input<T>(0) + row * layer.size, *x = call.input<T>(1) + row * layer.size;
                T* dx = call.output<T>(0) + row * layer.size;
                const T mean = call.input<T>(2)[row], deviation = call.input<T>(3)[row];
                const auto count = static_cast<double>(layer.size);
                const auto scaled = [&](std::int64_t i) { return dy[i] * element::or_else(weight, i, T(1)); };
                const double sum =
                    sum_in_lanes(layer.size, [&](std::int64_t i) { return static_cast<double>(scaled(i)); });
                const double product = sum_in_lanes(layer.size, [&](std::int64_t i) {
                    return static_cast<double>(scaled(i)) * static_cast<double>(x[i] - mean);
                });
                const T mean_dy = static_cast<T>(sum / count);
                const T slope =
                    static_cast<T>(product * static_cast<double>(deviation) * static_cast<double>(deviation) / count);
                for (std::int64_t i = 0; i < layer.size; ++i)
                    dx[i] = element::normalize_backward(x[i], scaled(i), mean, deviation, mean_dy, slope);
            });
        });
    });
}

std::unique_ptr<Kernel> make_layer_norm_backward_weights(const LayerNormBackwardWeights& operation,
                                                         KernelRequest& request) {
    request.want_all_contiguous();
    for (std::size_t i = 0; i < request.out.size(); ++i) require_contiguous_output(operation, request, i);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([layer = LayerRows(request.in[0].shape, operation.dims),
                            threads = request.threads](const KernelArgs& call) {
            constexpr std::int64_t width = 64;  // number of elements of a layer that are summed at once, row by row
            const int useful = worthwhile_threads(threads, layer.rows * layer.size);
            for_parts(useful, layer.size, width, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t first = begin; first < end; first += width) {
                    const std::int64_t count = std::min(width, end - first);
                    std::array<double, width> weights{}, biases{};
                    for (std::int64_t row = 0; row < layer.rows; ++row) {
                        const T* dy = call.input<T>(0) + row * layer.size + first;
                        const T* x = call.input<T>(1) + row * layer.size + first;
                        const T mean = call.input<T>(2)[row], deviation = call.input<T>(3)[row];
                        for (std::int64_t i = 0; i < count; ++i) {
                            const auto at = static_cast<std::size_t>(i);
                            weights[at] += static_cast<double>(dy[i] * ((x[i] - mean) * deviation));
                            biases[at] += static_cast<double>(dy[i]);
                        }
                    }
                    const auto store = [&](T* sums, const std::array<double, width>& from) {
                        for (std::int64_t i = 0; sums && i < count; ++i)
                            sums[first + i] = static_cast<T>(from[static_cast<std::size_t>(i)]);
                    };
                    store(call.output<T>(0), weights);
                    store(call.output<T>(1), biases);
                }
            });
        });
    });
}

}  // namespace

void add_layer_norm_kernels(KernelTable& table) {
    table.add<LayerNormForward, make_layer_norm>();
    table.add<LayerNormBackwardData, make_layer_norm_backward_data>();
    table.add<LayerNormBackwardWeights, make_layer_norm_backward_weights>();
}

}  // namespace lockstep::cpu
