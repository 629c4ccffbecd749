// Normalisation of the last dimensions, row by row. Sums are of doubles.
#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
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

std::unique_ptr<Kernel> make_layer_norm(const LayerNormForward& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([layer = LayerRows(request.in[0].shape, operation.dims), eps = operation.eps,
                            threads = request.threads](const KernelArgs& call) {
            const Loops<T>& loop = loops<T>();
            const T *weight = call.input<T>(1), *bias = call.input<T>(2);
            T *means = call.output<T>(1), *deviations = call.output<T>(2);
            layer.for_all(threads, [&](std::int64_t row) {
                const T* x = call.input<T>(0) + row * layer.size;
                T* y = call.output<T>(0) + row * layer.size;
                const auto count = static_cast<double>(layer.size);
                const double mean = loop.sum(x, layer.size) / count;
                const T middle = static_cast<T>(mean);
                // Deviations are from the rounded mean, whose own deviation is subtracted.
                const double error = mean - static_cast<double>(middle);
                const double m2 = std::max(0.0, loop.deviation(x, middle, layer.size) - count * error * error);
                const T deviation = static_cast<T>(1 / std::sqrt(m2 / count + eps));
                loop.normalize_row(x, middle, deviation, weight, bias, y, layer.size);
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
            const Loops<T>& loop = loops<T>();
            const T* weight = call.input<T>(4);
            layer.for_all(threads, [&](std::int64_t row) {
                const T *dy = call.input<T>(0) + row * layer.size, *x = call.input<T>(1) + row * layer.size;
                T* dx = call.output<T>(0) + row * layer.size;
                const T mean = call.input<T>(2)[row], deviation = call.input<T>(3)[row];
                const auto count = static_cast<double>(layer.size);
                double sums[2];
                loop.normalize_row_sums(x, dy, mean, weight, layer.size, sums);
                const auto inverse = static_cast<double>(deviation);
                const RowGradient<T> gradient{mean, deviation, static_cast<T>(sums[0] / count),
                                              static_cast<T>(sums[1] * inverse * inverse / count)};
                loop.normalize_row_backward(x, dy, gradient, weight, dx, layer.size);
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
            constexpr std::int64_t width = 256;  // number of elements of a layer that are summed at once, row by row
            const int useful = worthwhile_threads(threads, layer.rows * layer.size);
            for_parts(useful, layer.size, width, [&](std::int64_t begin, std::int64_t end) {
                for (std::int64_t first = begin; first < end; first += width) {
                    const std::int64_t count = std::min(width, end - first);
                    std::array<double, width> weights{}, biases{};
                    for (std::int64_t row = 0; row < layer.rows; ++row) {
                        const std::int64_t at = row * layer.size + first;
                        loops<T>().add_weight_gradients(call.input<T>(1) + at, call.input<T>(0) + at,
                                                        call.input<T>(2)[row], call.input<T>(3)[row], weights.data(),
                                                        biases.data(), count);
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
