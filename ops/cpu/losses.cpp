// Softmax, its logarithm, and the losses. What a loss sums is summed in double, in one order whatever the threads.
#include <algorithm>
#include <cmath>

#include "lockstep/ops/cpu/chunks.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/loss_operations.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {
namespace {

// ---- softmax ----------------------------------------------------------------------------------------------------

/// A row-major tensor as (outer, size, inner), the softmax running over `size`.
struct Lines {
    std::int64_t outer = 1, size = 1, inner = 1;

    Lines(const Shape& shape, int dim) {
        for (int i = 0; i < shape.dims(); ++i) (i < dim ? outer : i == dim ? size : inner) *= shape[i];
    }
    std::int64_t count() const { return outer * inner; }
    std::int64_t first(std::int64_t line) const { return line / inner * size * inner + line % inner; }
};

/// work(first element) for every line, in parallel.
template <class Work>
void for_lines(const Lines& lines, int threads, const Work& work) {
    if (lines.size == 0) return;
    const std::int64_t grain = std::max<std::int64_t>(1, 256 / lines.size);
    constexpr std::int64_t exponential = 8;  // simple elements that one costs
    for_parts(worthwhile_threads(threads, exponential * lines.count() * lines.size), lines.count(), grain,
              [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t line = begin; line < end; ++line) work(lines.first(line));
              });
}

template <bool logarithm>
std::unique_ptr<Kernel> make_softmax_forward(const SoftmaxForward<logarithm>& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [lines = Lines(request.in[0].shape, operation.dim), threads = request.threads](const KernelArgs& call) {
                for_lines(lines, threads, [&](std::int64_t first) {
                    const T* x = call.input<T>(0) + first;
                    T* y = call.output<T>(0) + first;
                    T largest = x[0];
                    for (std::int64_t i = 1; i < lines.size; ++i) largest = std::max(largest, x[i * lines.inner]);
                    T sum = 0;
                    for (std::int64_t i = 0; i < lines.size; ++i) {
                        const T power = std::exp(x[i * lines.inner] - largest);
                        if constexpr (!logarithm) y[i * lines.inner] = power;
                        sum += power;
                    }
                    const T log_of_sum = std::log(sum);
                    for (std::int64_t i = 0; i < lines.size; ++i) {
                        T& result = y[i * lines.inner];
                        result = logarithm ? x[i * lines.inner] - largest - log_of_sum : result / sum;
                    }
                });
            });
    });
}

template <bool logarithm>
std::unique_ptr<Kernel> make_softmax_backward(const SoftmaxBackward<logarithm>& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [lines = Lines(request.in[0].shape, operation.dim), threads = request.threads](const KernelArgs& call) {
                for_lines(lines, threads, [&](std::int64_t first) {
                    const T *dy = call.input<T>(0) + first, *y = call.input<T>(1) + first;
                    T* dx = call.output<T>(0) + first;
                    T sum = 0;
                    for (std::int64_t i = 0; i < lines.size * lines.inner; i += lines.inner)
                        sum += logarithm ? dy[i] : dy[i] * y[i];
                    for (std::int64_t i = 0; i < lines.size * lines.inner; i += lines.inner)
                        dx[i] = logarithm ? dy[i] - std::exp(y[i]) * sum : y[i] * (dy[i] - sum);
                });
            });
    });
}

// ---- negative log likelihood ------------------------------------------------------------------------------------

/// The first report stays.
void report(const KernelArgs& call, StatusCode code, std::int64_t row, std::int64_t value) {
    StatusWord& status = *call.status;
    if (status.code != 0) return;
    status = {static_cast<std::int32_t>(code), call.shard, static_cast<std::int64_t>(call.step->step), row, value};
}

template <class Op>
void require_targets(const Op&, const TensorMeta& target) {
    if (target.dtype != DType::i64)
        throw InvalidArgument(std::string(Op::name) + ": targets are i64, not " + std::string(name_of(target.dtype)) +
                              "; convert them with .to(dtype)");
}

std::unique_ptr<Kernel> make_nll_forward(const NllForward& operation, KernelRequest& request) {
    require_targets(operation, request.in[1]);
    request.want_all_contiguous();
    const std::int64_t rows = request.in[0].shape[0], classes = request.in[0].shape[1];
    const bool weighted = request.has_in(2);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([=, ignore = operation.ignore_index](const KernelArgs& call) {
            const T *logp = call.input<T>(0), *weights = call.input<T>(2);
            const auto* target = call.input<std::int64_t>(1);
            double numerator = 0, weight = 0;
            for (std::int64_t row = 0; row < rows; ++row) {
                const std::int64_t t = target[row];
                if (t == ignore) continue;
                if (t < 0 || t >= classes) {
                    report(call, StatusCode::target_out_of_range, call.first_row + row, t);
                    continue;
                }
                const double w = weighted ? static_cast<double>(weights[t]) : 1.0;
                if (logp) numerator -= w * static_cast<double>(logp[row * classes + t]);
                weight += w;
            }
            *call.output<T>(0) = static_cast<T>(numerator);
            *call.output<T>(1) = static_cast<T>(weight);
        });
    });
}

std::unique_ptr<Kernel> make_nll_backward(const NllBackward& operation, KernelRequest& request) {
    require_targets(operation, request.in[1]);
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    const std::int64_t rows = request.out[0].shape[0], classes = request.out[0].shape[1];
    const bool weighted = request.has_in(2);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([=, ignore = operation.ignore_index](const KernelArgs& call) {
            const T gradient = *call.input<T>(0), *weights = call.input<T>(2);
            const auto* target = call.input<std::int64_t>(1);
            T* dlogp = call.output<T>(0);
            std::fill_n(dlogp, rows * classes, T(0));
            for (std::int64_t row = 0; row < rows; ++row) {
                const std::int64_t t = target[row];
                if (t == ignore || t < 0 || t >= classes) continue;
                dlogp[row * classes + t] = weighted ? -gradient * weights[t] : -gradient;
            }
        });
    });
}

// ---- squared error ----------------------------------------------------------------------------------------------

/// Brings both inputs to one arrangement that runs from end to end.
void want_alike(KernelRequest& request, std::size_t a, std::size_t b) {
    if (!is_dense(request.in[a])) request.want_contiguous(a);
    arrange_like(request.in[b], request.in[a]);
}

std::unique_ptr<Kernel> make_squared_error_forward(const SquaredErrorForward& operation, KernelRequest& request) {
    want_alike(request, 0, 1);
    const std::int64_t elements = dense_elements(request.in[0]);
    const std::size_t scratch = static_cast<std::size_t>(chunk_count(elements)) * sizeof(double);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [elements, threads = request.threads](const KernelArgs& call) {
                const T *a = call.input<T>(0), *b = call.input<T>(1);
                *call.output<T>(0) = static_cast<T>(sum_chunks(
                    threads, elements, static_cast<double*>(call.scratch), [&](std::int64_t begin, std::int64_t end) {
                        return loops<T>().squared_error(a + begin, b + begin, end - begin);
                    }));
            },
            scratch);
    });
}

std::unique_ptr<Kernel> make_squared_error_backward(const SquaredErrorBackward& operation, KernelRequest& request) {
    want_alike(request, 1, 2);
    arrange_like(request.out[0], request.in[1]);
    const std::int64_t elements = dense_elements(request.in[1]);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([elements, threads = request.threads](const KernelArgs& call) {
            const T factor = T(2) * *call.input<T>(0);
            for_element_parts(threads, elements, [&](std::int64_t begin, std::int64_t end) {
                loops<T>().squared_error_backward(call.input<T>(1) + begin, call.input<T>(2) + begin, factor,
                                                  call.output<T>(0) + begin, end - begin);
            });
        });
    });
}

std::unique_ptr<Kernel> make_check_finite(const CheckFinite& operation, KernelRequest& request) {
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([](const KernelArgs& call) {
            const T value = *call.input<T>(0);
            if (!std::isfinite(value)) report(call, StatusCode::loss_not_finite, 0, 0);
            *call.output<T>(0) = value;
        });
    });
}

}  // namespace

void add_loss_kernels(KernelTable& table) {
    table.add<SoftmaxForward<false>, make_softmax_forward<false>>();
    table.add<SoftmaxBackward<false>, make_softmax_backward<false>>();
    table.add<SoftmaxForward<true>, make_softmax_forward<true>>();
    table.add<SoftmaxBackward<true>, make_softmax_backward<true>>();
    table.add<NllForward, make_nll_forward>();
    table.add<NllBackward, make_nll_backward>();
    table.add<SquaredErrorForward, make_squared_error_forward>();
    table.add<SquaredErrorBackward, make_squared_error_backward>();
    table.add<CheckFinite, make_check_finite>();
}

}  // namespace lockstep::cpu
