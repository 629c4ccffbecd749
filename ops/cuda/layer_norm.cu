// Normalisation of the last dimensions, row by row. Sums are of doubles.
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/internal/normalization_operations.h"

namespace lockstep::cuda {

namespace {

/// Rows of `size` elements, one after the other.
struct LayerRows {
    std::int64_t rows = 1, size = 1;

    LayerRows(const Shape& shape, int dims) {
        for (int i = 0; i < shape.dims(); ++i) (i < shape.dims() - dims ? rows : size) *= shape[i];
    }
    std::int64_t elements() const { return rows * size; }
};

struct SumPair {
    double first, second;
};

/// Mean and 1 / deviation of every row, from sums of differences from its first element: no digits are lost where the
/// mean is large.
template <class T>
struct RowMoments {
    using Value = SumPair;
    std::int64_t size;
    double eps;
    const T* x;
    T* mean;
    T* deviation;

    LOCKSTEP_ELEMENT Value zero() const { return {0, 0}; }
    LOCKSTEP_ELEMENT double origin(std::int64_t row) const { return static_cast<double>(x[row * size]); }
    LOCKSTEP_ELEMENT void add(Value& value, std::int64_t row, std::int64_t k) const {
        const double difference = static_cast<double>(x[row * size + k]) - origin(row);
        value.first += difference;
        value.second += difference * difference;
    }
    LOCKSTEP_ELEMENT void join(Value& value, const Value& other) const {
        value.first += other.first;
        value.second += other.second;
    }
    LOCKSTEP_ELEMENT void finish(std::int64_t row, const Value& value) const {
        const auto count = static_cast<double>(size);
        const double shift = value.first / count;
        const double m2 = value.second - value.first * shift;
        mean[row] = static_cast<T>(origin(row) + shift);
        deviation[row] = static_cast<T>(1 / std::sqrt((m2 > 0 || m2 != m2 ? m2 : 0) / count + eps));
    }
};

template <class T>
struct LayerNormElement {
    std::int64_t size;
    const T* x;
    const T* weight;
    const T* bias;
    const T* mean;
    const T* deviation;
    T* y;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const std::int64_t row = i / size, at = i % size;
        y[i] = element::normalize(x[i], mean[row], element::or_else(weight, at, T(1)) * deviation[row],
                                  element::or_else(bias, at, T(0)));
    }
};

/// What the gradient of x takes of its row: the mean of dy * weight, and that of dy * weight * xhat times 1 /
/// deviation.
template <class T>
struct RowGradients {
    using Value = SumPair;
    std::int64_t size;
    const T* dy;
    const T* x;
    const T* mean;
    const T* deviation;
    const T* weight;
    SumPair* sums;

    LOCKSTEP_ELEMENT Value zero() const { return {0, 0}; }
    LOCKSTEP_ELEMENT void add(Value& value, std::int64_t row, std::int64_t k) const {
        const std::int64_t i = row * size + k;
        const auto scaled = static_cast<double>(dy[i] * element::or_else(weight, k, T(1)));
        value.first += scaled;
        value.second += scaled * static_cast<double>(x[i] - mean[row]);
    }
    LOCKSTEP_ELEMENT void join(Value& value, const Value& other) const {
        value.first += other.first;
        value.second += other.second;
    }
    LOCKSTEP_ELEMENT void finish(std::int64_t row, const Value& value) const {
        const auto scale = static_cast<double>(deviation[row]);
        sums[row] = {value.first / static_cast<double>(size), value.second * scale * scale / static_cast<double>(size)};
    }
};

template <class T>
struct LayerNormBackwardElement {
    std::int64_t size;
    const T* dy;
    const T* x;
    const T* mean;
    const T* deviation;
    const T* weight;
    const SumPair* sums;
    T* dx;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const std::int64_t row = i / size;
        dx[i] = element::normalize_backward(x[i], dy[i] * element::or_else(weight, i % size, T(1)), mean[row],
                                            deviation[row], static_cast<T>(sums[row].first),
                                            static_cast<T>(sums[row].second));
    }
};

template <class T>
struct WeightGradients {
    using Value = SumPair;
    std::int64_t size;
    const T* dy;
    const T* x;
    const T* mean;
    const T* deviation;
    T* weight;
    T* bias;

    LOCKSTEP_ELEMENT Value zero() const { return {0, 0}; }
    LOCKSTEP_ELEMENT void add(Value& value, std::int64_t at, std::int64_t row) const {
        const std::int64_t i = row * size + at;
        value.first += static_cast<double>(dy[i] * ((x[i] - mean[row]) * deviation[row]));
        value.second += static_cast<double>(dy[i]);
    }
    LOCKSTEP_ELEMENT void join(Value& value, const Value& other) const {
        value.first += other.first;
        value.second += other.second;
    }
    LOCKSTEP_ELEMENT void finish(std::int64_t at, const Value& value) const {
        if (weight != nullptr) weight[at] = static_cast<T>(value.first);
        if (bias != nullptr) bias[at] = static_cast<T>(value.second);
    }
};

std::size_t whole_lines(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

KernelPtr make_layer_norm_forward(const LayerNormForward& op, KernelRequest& request) {
    request.want_all_contiguous();
    const LayerRows layer(request.in[0].shape, op.dims);
    const ReducePlan plan = ReducePlan::make(layer.size > 0 ? layer.rows : 0, layer.size, false);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        // Statistics that nobody wants.
        const std::size_t of_rows = whole_lines(static_cast<std::size_t>(layer.rows) * sizeof(T));
        return make_cuda_kernel(
            request,
            [layer, plan, of_rows, eps = op.eps](const Queue& queue, const KernelArgs& v) {
                auto* const scratch = static_cast<char*>(v.scratch);
                T* const mean = v.out[1] != nullptr ? v.output<T>(1) : reinterpret_cast<T*>(scratch);
                T* const deviation = v.out[2] != nullptr ? v.output<T>(2) : reinterpret_cast<T*>(scratch + of_rows);
                reduce(queue, "layer_norm_moments", plan,
                       RowMoments<T>{layer.size, eps, v.input<T>(0), mean, deviation}, scratch + 2 * of_rows);
                launch(queue, "layer_norm", layer.elements(),
                       LayerNormElement<T>{layer.size, v.input<T>(0), v.input<T>(1), v.input<T>(2), mean, deviation,
                                           v.output<T>(0)});
            },
            2 * of_rows + plan.scratch_bytes<RowMoments<T>>());
    });
}

KernelPtr make_layer_norm_backward_data(const LayerNormBackwardData& op, KernelRequest& request) {
    request.want_all_contiguous();
    const LayerRows layer(request.in[0].shape, op.dims);
    const ReducePlan plan = ReducePlan::make(layer.size > 0 ? layer.rows : 0, layer.size, false);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const std::size_t of_rows = whole_lines(static_cast<std::size_t>(layer.rows) * sizeof(SumPair));
        return make_cuda_kernel(
            request,
            [layer, plan, of_rows](const Queue& queue, const KernelArgs& v) {
                auto* const sums = static_cast<SumPair*>(v.scratch);
                reduce(queue, "layer_norm_row_gradients", plan,
                       RowGradients<T>{layer.size, v.input<T>(0), v.input<T>(1), v.input<T>(2), v.input<T>(3),
                                       v.input<T>(4), sums},
                       static_cast<char*>(v.scratch) + of_rows);
                launch(queue, "layer_norm_backward_data", layer.elements(),
                       LayerNormBackwardElement<T>{layer.size, v.input<T>(0), v.input<T>(1), v.input<T>(2),
                                                   v.input<T>(3), v.input<T>(4), sums, v.output<T>(0)});
            },
            of_rows + plan.scratch_bytes<RowGradients<T>>());
    });
}

KernelPtr make_layer_norm_backward_weights(const LayerNormBackwardWeights& op, KernelRequest& request) {
    request.want_all_contiguous();
    const LayerRows layer(request.in[0].shape, op.dims);
    const ReducePlan plan = ReducePlan::make(layer.size, layer.rows, true);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(
            request,
            [layer, plan](const Queue& queue, const KernelArgs& v) {
                reduce(queue, "layer_norm_backward_weights", plan,
                       WeightGradients<T>{layer.size, v.input<T>(0), v.input<T>(1), v.input<T>(2), v.input<T>(3),
                                          v.output<T>(0), v.output<T>(1)},
                       v.scratch);
            },
            plan.scratch_bytes<WeightGradients<T>>());
    });
}

}  // namespace

void add_layer_norm_kernels(KernelTable& table) {
    table.add<LayerNormForward, make_layer_norm_forward>();
    table.add<LayerNormBackwardData, make_layer_norm_backward_data>();
    table.add<LayerNormBackwardWeights, make_layer_norm_backward_weights>();
}

}  // namespace lockstep::cuda
