// Compare, Where, and rare functions of one and two numbers.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/report.h"
#include "lockstep/ops/cpu/strided_rows.h"
#include "lockstep/ops/internal/bivariate.h"
#include "lockstep/ops/internal/selection_operations.h"
#include "lockstep/ops/internal/special_functions.h"
#include "lockstep/ops/internal/visit_size.h"
#include "lockstep/runtime/dtype.h"

namespace lockstep::cpu {
namespace {

/// A walk through `inputs` operands, broadcast to the output, and the output.
template <std::size_t inputs>
StridedWalk<inputs + 1> broadcast_walk(const KernelRequest& request) {
    const Shape& shape = request.out[0].shape;
    std::array<Shape, inputs + 1> strides;
    for (std::size_t i = 0; i < inputs; ++i) strides[i] = broadcast_strides(request.in[i], shape);
    strides[inputs] = request.out[0].strides;
    return StridedWalk<inputs + 1>(shape, strides);
}

template <class Op>
void want_strided(const Op& operation, KernelRequest& request) {
    for (std::size_t i = 0; i < request.in.size(); ++i)
        if (request.in[i].opaque != nullptr) request.want_contiguous(i);
    require_contiguous_output(operation, request, 0);
}

/// Calls loop(steps...) with each of them as a constant if it is 0 or 1.
template <class Loop>
void with_steps(std::int64_t a, std::int64_t b, const Loop& loop) {
    using Zero = std::integral_constant<std::int64_t, 0>;
    using One = std::integral_constant<std::int64_t, 1>;
    if (a == 1 && b == 1) return loop(One{}, One{});
    if (a == 1 && b == 0) return loop(One{}, Zero{});
    if (a == 0 && b == 1) return loop(Zero{}, One{});
    loop(a, b);
}

std::unique_ptr<Kernel> make_compare(const Compare& operation, KernelRequest& request) {
    want_strided(operation, request);
    return visit_dtype(request.in[0].dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
        using T = decltype(zero);
        if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
            unsupported_dtype(operation, request.in[0].dtype);
        } else {
            return make_kernel([walk = broadcast_walk<2>(request), threads = request.threads,
                                relations = operation.relations](const KernelArgs& call) {
                for_strided_rows(threads, walk, [&](const auto& at, std::int64_t n) {
                    const T *a = call.input<T>(0) + at[0], *b = call.input<T>(1) + at[1];
                    bool* y = call.output<bool>(0) + at[2];
                    with_steps(walk.steps()[0], walk.steps()[1], [=](auto a_step, auto b_step) {
                        for (std::int64_t i = 0; i < n; ++i) y[i] = relations.hold(a[i * a_step], b[i * b_step]);
                    });
                });
            });
        }
    });
}

std::unique_ptr<Kernel> make_bivariate(const Bivariate& operation, KernelRequest& request) {
    want_strided(operation, request);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [walk = broadcast_walk<2>(request), threads = request.threads, operation](const KernelArgs& call) {
                for_strided_rows(threads, walk, [&](const auto& at, std::int64_t n) {
                    const T *a = call.input<T>(0) + at[0], *b = call.input<T>(1) + at[1];
                    T* y = call.output<T>(0) + at[2];
                    const std::int64_t a_step = walk.steps()[0], b_step = walk.steps()[1];
                    for (std::int64_t i = 0; i < n; ++i) y[i] = operation.value(a[i * a_step], b[i * b_step]);
                });
            });
    });
}

/// Adjacent elements of the result are computed by loops, in blocks that stay in the first-level cache.
std::unique_ptr<Kernel> make_lerp(const Lerp& operation, KernelRequest& request) {
    want_strided(operation, request);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [walk = broadcast_walk<2>(request), threads = request.threads, operation](const KernelArgs& call) {
                constexpr std::int64_t block = 512;
                const bool from_a = operation.weight < 0.5;
                const auto factor = static_cast<T>(from_a ? operation.weight : 1 - operation.weight);
                for_strided_rows(threads, walk, [&](const auto& at, std::int64_t n) {
                    const T *a = call.input<T>(0) + at[0], *b = call.input<T>(1) + at[1];
                    T* y = call.output<T>(0) + at[2];
                    const std::int64_t a_step = walk.steps()[0], b_step = walk.steps()[1];
                    if (a_step != 1 || b_step != 1) {
                        for (std::int64_t i = 0; i < n; ++i) y[i] = operation.value(a[i * a_step], b[i * b_step]);
                        return;
                    }
                    for (std::int64_t i = 0; i < n; i += block) {
                        const std::int64_t count = std::min(block, n - i);
                        T between[block];
                        binary_loops<T, functor::Sub>()[0](b + i, a + i, between, count);
                        loops<T>().affine(between, between, count, factor, T(-0.0));
                        if (from_a)
                            binary_loops<T, functor::Add>()[0](a + i, between, y + i, count);
                        else
                            binary_loops<T, functor::Sub>()[0](b + i, between, y + i, count);
                    }
                });
            });
    });
}

/// Reports the first divisor that is 0; `b` is row-major.
void check_divisors(const KernelArgs& call, const TensorMeta& b) {
    const std::int64_t count = b.numel();
    const std::int64_t rows = b.shape.empty() ? 1 : std::max<std::int64_t>(1, b.shape[0]);
    const auto* const divisors = call.input<std::int64_t>(1);
    const auto* const zero = std::find(divisors, divisors + count, 0);
    if (zero != divisors + count)
        report(call, StatusCode::division_by_zero, (b.batch ? call.first_row : 0) + (zero - divisors) / (count / rows),
               0);
}

std::unique_ptr<Kernel> make_integer_bivariate(const IntegerBivariate& operation, KernelRequest& request) {
    want_strided(operation, request);
    request.want_contiguous(1);
    return make_kernel([walk = broadcast_walk<2>(request), threads = request.threads, operation,
                        divisors = request.in[1]](const KernelArgs& call) {
        if (operation.divides()) check_divisors(call, divisors);
        for_strided_rows(threads, walk, [&](const auto& at, std::int64_t n) {
            const auto *a = call.input<std::int64_t>(0) + at[0], *b = call.input<std::int64_t>(1) + at[1];
            auto* y = call.output<std::int64_t>(0) + at[2];
            const std::int64_t a_step = walk.steps()[0], b_step = walk.steps()[1];
            for (std::int64_t i = 0; i < n; ++i) y[i] = operation.value(a[i * a_step], b[i * b_step]);
        });
    });
}

std::unique_ptr<Kernel> make_special_function(const SpecialFunction& operation, KernelRequest& request) {
    want_strided(operation, request);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [walk = broadcast_walk<1>(request), threads = request.threads, operation](const KernelArgs& call) {
                for_strided_rows(threads, walk, [&](const auto& at, std::int64_t n) {
                    const T* x = call.input<T>(0) + at[0];
                    T* y = call.output<T>(0) + at[1];
                    const std::int64_t step = walk.steps()[0];
                    for (std::int64_t i = 0; i < n; ++i) y[i] = operation.value(x[i * step]);
                });
            });
    });
}

/// a or b, of which both are read. Loops with branches are not vectorized and mispredict mixed conditions.
template <class Bits>
Bits selected(bool condition, Bits a, Bits b) {
    const auto mask = static_cast<Bits>(-static_cast<Bits>(condition));
    return static_cast<Bits>((a & mask) | (b & ~mask));
}

/// Elements as numbers of the same size.
template <class Bits>
std::unique_ptr<Kernel> make_where_of(const KernelRequest& request) {
    return make_kernel([walk = broadcast_walk<3>(request), threads = request.threads](const KernelArgs& call) {
        for_strided_rows(threads, walk, [&](const auto& at, std::int64_t n) {
            const bool* condition = call.input<bool>(0) + at[0];
            const Bits *a = call.input<Bits>(1) + at[1], *b = call.input<Bits>(2) + at[2];
            Bits* y = call.output<Bits>(0) + at[3];
            const std::int64_t step = walk.steps()[0];
            with_steps(walk.steps()[1], walk.steps()[2], [=](auto a_step, auto b_step) {
                if (step == 1)
                    for (std::int64_t i = 0; i < n; ++i) y[i] = selected(condition[i], a[i * a_step], b[i * b_step]);
                else
                    for (std::int64_t i = 0; i < n; ++i)
                        y[i] = selected(condition[i * step], a[i * a_step], b[i * b_step]);
            });
        });
    });
}

std::unique_ptr<Kernel> make_where(const Where& operation, KernelRequest& request) {
    want_strided(operation, request);
    return visit_size(request.out[0].dtype, [&](auto bits) { return make_where_of<decltype(bits)>(request); });
}

}  // namespace

void add_selection_kernels(KernelTable& table) {
    table.add<Compare, make_compare>();
    table.add<Bivariate, make_bivariate>();
    table.add<Lerp, make_lerp>();
    table.add<IntegerBivariate, make_integer_bivariate>();
    table.add<SpecialFunction, make_special_function>();
    table.add<Where, make_where>();
    table.add_half_types<Where, make_where>();
}

}  // namespace lockstep::cpu
