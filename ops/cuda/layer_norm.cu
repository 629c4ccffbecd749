// Normalisation of the last dimensions, row by row.
#include "lockstep/ops/cuda/batch.h"
#include "lockstep/ops/cuda/channel_moments.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/pack.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/row_kernels.h"
#include "lockstep/ops/cuda/running_sum.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

namespace {

/// Consecutive rows of `size` elements.
struct LayerRows {
    std::int64_t rows = 1, size = 1;

    LayerRows(const Shape& shape, int dims) {
        for (int i = 0; i < shape.dims(); ++i) (i < shape.dims() - dims ? rows : size) *= shape[i];
    }
    std::int64_t elements() const { return rows * size; }
};

/// Two sums, as the accumulator of a reduction.
template <class T>
struct SumPair {
    RunningSum<T> first, second;

    LOCKSTEP_HD_INLINE void add(const SumPair& other) {
        first.add(other.first);
        second.add(other.second);
    }
};

/// Mean and 1 / deviation of every row.
template <class T>
struct RowMoments {
    using Plans = NoColumns;
    using Value = typename ChannelMoments<T, 1>::Value;
    ChannelMoments<T, 1> rows;  // as channels
    double eps;
    T* mean;
    T* deviation;

    LOCKSTEP_HD_INLINE Value zero() const { return {}; }
    LOCKSTEP_HD_INLINE void add_all(Value& value, std::int64_t row, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        rows.add_all(value, row, first, end, step);
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const { rows.join(value, other); }
    template <class Group>
    LOCKSTEP_ROW_FUNCTION Value joined(const Value& own, const Group& group) const {
        return rows.joined(own, group);
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t row, const Value& value) const {
        mean[row] = rows.mean(row, 0, value);
        deviation[row] = element::inverse_deviation(value.m2[0], static_cast<T>(rows.count()), eps);
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

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const std::int64_t row = i / size, at = i % size;
        y[i] = element::normalize(x[i], mean[row], element::or_else(weight, at, T(1)) * deviation[row],
                                  element::or_else(bias, at, T(0)));
    }
};

/// Row values for the gradient of x: the mean of dy * weight, and the mean of dy * weight * xhat times 1 / deviation.
template <class T>
struct RowGradients {
    using Plans = NoColumns;
    using Value = SumPair<T>;
    std::int64_t size;
    const T* dy;
    const T* x;
    const T* mean;
    const T* deviation;
    const T* weight;
    T* sums;  // both of a row, one after the other

    LOCKSTEP_HD_INLINE Value zero() const { return {}; }
    LOCKSTEP_HD_INLINE void add(Value& value, std::int64_t row, std::int64_t k) const {
        const std::int64_t i = row * size + k;
        const T scaled = dy[i] * element::or_else(weight, k, T(1));
        value.first.add(scaled);
        value.second.add(scaled * (x[i] - mean[row]));
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const { value.add(other); }
    LOCKSTEP_HD_INLINE void finish(std::int64_t row, const Value& value) const {
        sums[2 * row] = value.first.value() / static_cast<T>(size);
        sums[2 * row + 1] = value.second.value() * deviation[row] * deviation[row] / static_cast<T>(size);
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
    const T* sums;
    T* dx;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const std::int64_t row = i / size;
        dx[i] = element::normalize_backward(x[i], dy[i] * element::or_else(weight, i % size, T(1)), mean[row],
                                            deviation[row], sums[2 * row], sums[2 * row + 1]);
    }
};

/// Gradients of weight and bias, for packs of adjacent elements of the layer.
template <class Stored, int width>
struct WeightGradients {
    using Plans = OnlyColumns;
    static constexpr int at_once = 4;  // rows whose loads are in flight
    static constexpr int resident_blocks = sizeof(Stored) == 8 ? 3 : 0;
    using T = UpcastType<Stored>;
    struct alignas(width % 4 == 0 ? 16 : alignof(SumPair<T>)) Value {
        SumPair<T> of[width];
    };
    std::int64_t packs;  // in a row
    PackedInput<Stored, width> dy, x;
    const Stored* mean;
    const Stored* deviation;
    Stored* weight;
    Stored* bias;

    struct Row {
        Pack<Stored, width> dy, x;
        Stored mean, deviation;
    };
    LOCKSTEP_HD_INLINE Value zero() const { return {}; }
    LOCKSTEP_HD_INLINE void add_all(Value& value, std::int64_t at, std::int64_t first, std::int64_t end,
                                    std::int64_t step) const {
        for_loaded<at_once>(
            first, end, step,
            [&](std::int64_t row) {
                const std::int64_t pack = row * packs + at;
                return Row{dy.load(pack), x.load(pack), mean[row], deviation[row]};
            },
            [&](const Row& row, std::int64_t) {
                const T middle = upcast(row.mean), scale = upcast(row.deviation);
                LOCKSTEP_UNROLL
                for (int j = 0; j < width; ++j) {
                    const T gradient = upcast(row.dy.of[j]);
                    value.of[j].first.add(gradient * ((upcast(row.x.of[j]) - middle) * scale));
                    value.of[j].second.add(gradient);
                }
            });
    }
    LOCKSTEP_HD_INLINE void join(Value& value, const Value& other) const {
        for (int j = 0; j < width; ++j) value.of[j].add(other.of[j]);
    }
    LOCKSTEP_HD_INLINE void finish(std::int64_t at, const Value& value) const {
        for (int j = 0; j < width; ++j) {
            if (weight != nullptr) weight[at * width + j] = CastTo<Stored>::from(value.of[j].first.value());
            if (bias != nullptr) bias[at * width + j] = CastTo<Stored>::from(value.of[j].second.value());
        }
    }
};

// Rows that fit in registers.

template <class Stored>
struct LayerNormRow {
    using Element = Stored;
    using T = UpcastType<Stored>;
    int size;
    double eps;
    const Stored* x;
    const Stored* weight;
    const Stored* bias;
    Stored* y;
    Stored* mean;       // or null
    Stored* deviation;  // or null

    template <class Group>
    LOCKSTEP_ROW_FUNCTION void operator()(const Group& group, std::int64_t row) const {
        typename Group::template Packs<T> values;
        group.load_as(x + row * size, size, values);
        T sum = T(0), squares = T(0);
        group.each(size, [&](int p, int j) { sum += values[p].of[j]; });
        const T middle = sum_of(group, sum) / static_cast<T>(size);
        group.each(size, [&](int p, int j) {
            values[p].of[j] -= middle;
            squares += values[p].of[j] * values[p].of[j];
        });
        const T scale = element::inverse_deviation(sum_of(group, squares), static_cast<T>(size), eps);
        group.each_pack(size, [&](int p, int k) {
            Pack<Stored, Group::width> wide = {}, shift = {}, out;
            if (weight != nullptr) wide = group.load(weight, k, size);
            if (bias != nullptr) shift = group.load(bias, k, size);
            LOCKSTEP_UNROLL
            for (int j = 0; j < Group::width; ++j) {
                const T factor = weight != nullptr ? upcast(wide.of[j]) * scale : scale;
                out.of[j] = CastTo<Stored>::from(values[p].of[j] * factor + upcast(shift.of[j]));
            }
            group.store(y + row * size, k, size, out);
        });
        if (group.leads() && mean != nullptr) mean[row] = CastTo<Stored>::from(middle);
        if (group.leads() && deviation != nullptr) deviation[row] = CastTo<Stored>::from(scale);
    }
};

template <class Stored>
struct LayerNormBackwardRow {
    using Element = Stored;
    using T = UpcastType<Stored>;
    int size;
    const Stored* dy;
    const Stored* x;
    const Stored* mean;
    const Stored* deviation;
    const Stored* weight;
    Stored* dx;

    template <class Group>
    LOCKSTEP_ROW_FUNCTION void operator()(const Group& group, std::int64_t row) const {
        typename Group::template Packs<Stored> xs;
        typename Group::template Packs<T> gradients;
        const Stored stored_mean = mean[row], stored_deviation = deviation[row];
        group.load(x + row * size, size, xs);
        group.load_as(dy + row * size, size, gradients);
        const T middle = upcast(stored_mean), scale = upcast(stored_deviation);
        T sum = T(0), product = T(0);
        group.each_pack(size, [&](int p, int k) {
            Pack<Stored, Group::width> wide = {};
            if (weight != nullptr) wide = group.load(weight, k, size);
            LOCKSTEP_UNROLL
            for (int j = 0; j < Group::width; ++j) {
                if (weight != nullptr) gradients[p].of[j] *= upcast(wide.of[j]);
                sum += gradients[p].of[j];
                product += gradients[p].of[j] * (upcast(xs[p].of[j]) - middle);
            }
        });
        const T mean_gradient = sum_of(group, sum) / static_cast<T>(size);
        const T slope = sum_of(group, product) * scale * scale / static_cast<T>(size);
        group.each_pack(size, [&](int p, int k) {
            Pack<Stored, Group::width> out;
            LOCKSTEP_UNROLL
            for (int j = 0; j < Group::width; ++j)
                out.of[j] = CastTo<Stored>::from(
                    scale * (gradients[p].of[j] - mean_gradient - (upcast(xs[p].of[j]) - middle) * slope));
            group.store(dx + row * size, k, size, out);
        });
    }
};

/// Whether registers hold the rows of an f32 request. Doubles are too large.
bool in_registers(const KernelRequest& request, const LayerRows& layer) {
    return request.in[0].dtype == DType::f32 && layer.size <= longest_row;
}

template <class Stored>
KernelPtr forward_of_rows(const KernelRequest& request, const LayerRows& layer, double eps) {
    return make_cuda_kernel(request, [layer, eps](const Queue& queue, const KernelArgs& v) {
        const LayerNormRow<Stored> function{static_cast<int>(layer.size), eps,
                                            v.input<Stored>(0),           v.input<Stored>(1),
                                            v.input<Stored>(2),           v.output<Stored>(0),
                                            v.output<Stored>(1),          v.output<Stored>(2)};
        launch_rows(queue, "layer_norm", layer.rows, layer.size, function,
                    are_aligned<widest<Stored>>(function.x, function.weight, function.bias, function.y));
    });
}

template <class Stored>
KernelPtr backward_of_rows(const KernelRequest& request, const LayerRows& layer) {
    return make_cuda_kernel(request, [layer](const Queue& queue, const KernelArgs& v) {
        const LayerNormBackwardRow<Stored> function{
            static_cast<int>(layer.size), v.input<Stored>(0), v.input<Stored>(1), v.input<Stored>(2),
            v.input<Stored>(3),           v.input<Stored>(4), v.output<Stored>(0)};
        launch_rows(queue, "layer_norm_backward_data", layer.rows, layer.size, function,
                    are_aligned<widest<Stored>>(function.dy, function.x, function.weight, function.dx));
    });
}

KernelPtr make_layer_norm_forward(const LayerNormForward& op, KernelRequest& request) {
    request.want_all_contiguous();
    const LayerRows layer(request.in[0].shape, op.dims);
    if (in_registers(request, layer)) return forward_of_rows<float>(request, layer, op.eps);
    const ReducePlan plan = ReducePlan::make(layer.size > 0 ? layer.rows : 0, layer.size, false);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        // Statistics that are not requested.
        const std::size_t of_rows = round_up(static_cast<std::size_t>(layer.rows) * sizeof(T), scratch_alignment);
        return make_cuda_kernel(
            request,
            [layer, plan, of_rows, eps = op.eps](const Queue& queue, const KernelArgs& v) {
                auto* const scratch = static_cast<char*>(v.scratch);
                T* const mean = v.out[1] != nullptr ? v.output<T>(1) : reinterpret_cast<T*>(scratch);
                T* const deviation = v.out[2] != nullptr ? v.output<T>(2) : reinterpret_cast<T*>(scratch + of_rows);
                reduce(queue, "layer_norm_moments", plan,
                       RowMoments<T>{{{1, layer.rows, layer.size}, {v.input<T>(0), true}}, eps, mean, deviation},
                       scratch + 2 * of_rows);
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
    if (in_registers(request, layer)) return backward_of_rows<float>(request, layer);
    const ReducePlan plan = ReducePlan::make(layer.size > 0 ? layer.rows : 0, layer.size, false);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const std::size_t of_rows = round_up(static_cast<std::size_t>(layer.rows) * 2 * sizeof(T), scratch_alignment);
        return make_cuda_kernel(
            request,
            [layer, plan, of_rows](const Queue& queue, const KernelArgs& v) {
                auto* const sums = static_cast<T*>(v.scratch);
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

template <class Stored, int width>
KernelPtr weight_gradients(const KernelRequest& request, const LayerRows& layer) {
    using Gradients = WeightGradients<Stored, width>;
    const std::int64_t packs = layer.size / width;
    const ReducePlan plan = ReducePlan::make(packs, layer.rows, true);
    return make_cuda_kernel(
        request,
        [packs, plan](const Queue& queue, const KernelArgs& v) {
            reduce(queue, "layer_norm_backward_weights", plan,
                   Gradients{packs, packed_input<width>(v.input<Stored>(0)), packed_input<width>(v.input<Stored>(1)),
                             v.input<Stored>(2), v.input<Stored>(3), v.output<Stored>(0), v.output<Stored>(1)},
                   v.scratch);
        },
        plan.scratch_bytes<Gradients>());
}

KernelPtr make_layer_norm_backward_weights(const LayerNormBackwardWeights& op, KernelRequest& request) {
    request.want_all_contiguous();
    const LayerRows layer(request.in[0].shape, op.dims);
    return visit_any_float(op.name, request.in[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        constexpr int wide = std::min(widest<Stored>, 4);  // sums of more would leave registers for few threads
        return layer.size % wide == 0 ? weight_gradients<Stored, wide>(request, layer)
                                      : weight_gradients<Stored, 1>(request, layer);
    });
}

KernelPtr make_half_forward(const LayerNormForward& op, KernelRequest& request) {
    const LayerRows layer(request.in[0].shape, op.dims);
    if (!has_one_dtype(request) || layer.size > longest_row) return nullptr;
    request.want_all_contiguous();
    if (request.in[0].dtype == DType::f16) return forward_of_rows<Half>(request, layer, op.eps);
    return forward_of_rows<BFloat16>(request, layer, op.eps);
}

KernelPtr make_half_backward_data(const LayerNormBackwardData& op, KernelRequest& request) {
    const LayerRows layer(request.in[0].shape, op.dims);
    if (!has_one_dtype(request) || layer.size > longest_row) return nullptr;
    request.want_all_contiguous();
    if (request.in[0].dtype == DType::f16) return backward_of_rows<Half>(request, layer);
    return backward_of_rows<BFloat16>(request, layer);
}

KernelPtr make_half_backward_weights(const LayerNormBackwardWeights& op, KernelRequest& request) {
    for (const auto* operands : {&request.in, &request.out})
        for (const TensorMeta& meta : *operands)
            if (!meta.shape.empty() && meta.dtype != request.in[0].dtype) return nullptr;
    return make_layer_norm_backward_weights(op, request);
}

}  // namespace

void add_layer_norm_kernels(KernelTable& table) {
    table.add<LayerNormForward, make_layer_norm_forward>();
    table.add<LayerNormBackwardData, make_layer_norm_backward_data>();
    table.add<LayerNormBackwardWeights, make_layer_norm_backward_weights>();
    table.add_half_types<LayerNormForward, make_half_forward>();
    table.add_half_types<LayerNormBackwardData, make_half_backward_data>();
    table.add_half_types<LayerNormBackwardWeights, make_half_backward_weights>();
}

}  // namespace lockstep::cuda
