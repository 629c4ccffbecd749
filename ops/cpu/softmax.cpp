// Softmax and its logarithm over any dimension. The arithmetic of an element does not depend on the threads.
#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/lines.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {
namespace {

constexpr std::int64_t block = 512;  // elements that stay in the first-level cache

/// Calls work(first element, count) for `count` neighbouring lines, at most `block`, in parallel.
template <class Work>
void for_lines(const Lines& lines, int threads, const Work& work) {
    const std::int64_t tiles = ceil_div(lines.inner, block), elements = lines.outer * lines.size * lines.inner;
    if (elements == 0) return;
    const std::int64_t grain = std::max<std::int64_t>(1, 256 / (lines.size * std::min(lines.inner, block)));
    constexpr std::int64_t exponential = 2;  // cost of one in simple elements
    for_parts(worthwhile_threads(threads, exponential * elements), lines.outer * tiles, grain,
              [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t i = begin; i < end; ++i) {
                      const std::int64_t column = i % tiles * block;
                      work(i / tiles * lines.size * lines.inner + column, std::min(block, lines.inner - column));
                  }
              });
}

template <class T>
using Row = std::array<T, block>;

/// Sums of `count` adjacent lines, element by element. At most 64 terms are added up in T, so that rounding errors do
/// not grow with the size.
template <class T>
class LineSums {
public:
    explicit LineSums(std::int64_t count) : count_(count) {
        std::fill_n(part_.data(), count, T(0));
        std::fill_n(total_.data(), count, 0.0);
    }
    /// The sums to which the next terms are added.
    T* next() {
        if (++terms_ % 64 == 0) flush();
        return part_.data();
    }
    /// The sums.
    T* rounded() {
        flush();
        for (std::size_t j = 0; j < static_cast<std::size_t>(count_); ++j) part_[j] = static_cast<T>(total_[j]);
        return part_.data();
    }

private:
    void flush() {
        for (std::size_t j = 0; j < static_cast<std::size_t>(count_); ++j) {
            total_[j] += static_cast<double>(part_[j]);
            part_[j] = 0;
        }
    }

    std::int64_t count_, terms_ = 0;
    Row<T> part_;
    Row<double> total_;
};

/// One line of adjacent elements.
template <bool logarithm, class T>
void softmax_line(const T* x, T* y, std::int64_t n) {
    const Loops<T>& loop = loops<T>();
    const T largest = loop.largest(x, n);
    if constexpr (logarithm) {
        Row<T> powers;
        double sum = 0;
        for (std::int64_t i = 0; i < n; i += block) {
            const std::int64_t count = std::min(block, n - i);
            loop.exp_below(x + i, largest, powers.data(), count);
            sum += loop.sum(powers.data(), count);
        }
        const T log_of_sum = std::log(static_cast<T>(sum));
        loop.affine(x, y, n, T(1), -largest);
        loop.affine(y, y, n, T(1), -log_of_sum);
    } else {
        loop.exp_below(x, largest, y, n);
        loop.affine(y, y, n, static_cast<T>(1 / loop.sum(y, n)), T(-0.0));
    }
}

/// `count` adjacent lines, whose elements are `inner` apart.
template <bool logarithm, class T>
void softmax_lines(const T* x, T* y, std::int64_t size, std::int64_t inner, std::int64_t count) {
    Row<T> largest, powers;
    std::copy_n(x, count, largest.data());
    for (std::int64_t k = 1; k < size; ++k)
        binary_loops<T, functor::Maximum>()[0](largest.data(), x + k * inner, largest.data(), count);
    LineSums<T> sums(count);
    for (std::int64_t k = 0; k < size; ++k) {
        T* const to = logarithm ? powers.data() : y + k * inner;
        binary_loops<T, functor::Sub>()[0](x + k * inner, largest.data(), to, count);
        run_unary(functor::Exp(), to, to, count);
        T* const sum = sums.next();
        binary_loops<T, functor::Add>()[0](sum, to, sum, count);
    }
    T* const sum = sums.rounded();
    if constexpr (logarithm) run_unary(functor::Log(), sum, sum, count);
    for (std::int64_t k = 0; k < size; ++k) {
        T* const row = y + k * inner;
        if constexpr (logarithm) {
            binary_loops<T, functor::Sub>()[0](x + k * inner, largest.data(), row, count);
            binary_loops<T, functor::Sub>()[0](row, sum, row, count);
        } else {
            binary_loops<T, functor::Div>()[0](row, sum, row, count);
        }
    }
}

template <bool logarithm>
std::unique_ptr<Kernel> make_softmax_forward(const SoftmaxForward<logarithm>& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [lines = Lines(request.in[0].shape, operation.dim), threads = request.threads](const KernelArgs& call) {
                for_lines(lines, threads, [&](std::int64_t first, std::int64_t count) {
                    const T* const x = call.input<T>(0) + first;
                    T* const y = call.output<T>(0) + first;
                    if (lines.inner == 1)
                        softmax_line<logarithm>(x, y, lines.size);
                    else
                        softmax_lines<logarithm>(x, y, lines.size, lines.inner, count);
                });
            });
    });
}

/// dx of one line of adjacent elements.
template <bool logarithm, class T>
void softmax_gradient_line(const T* dy, const T* y, T* dx, std::int64_t n) {
    const Loops<T>& loop = loops<T>();
    if constexpr (logarithm) {
        const T total = static_cast<T>(loop.sum(dy, n));
        Row<T> powers;
        for (std::int64_t i = 0; i < n; i += block) {
            const std::int64_t count = std::min(block, n - i);
            run_unary(functor::Exp(), y + i, powers.data(), count);
            loop.log_softmax_gradient(dy + i, powers.data(), total, dx + i, count);
        }
    } else {
        loop.softmax_gradient(dy, y, static_cast<T>(loop.product_sum(dy, y, n)), dx, n);
    }
}

/// dx of `count` adjacent lines.
template <bool logarithm, class T>
void softmax_gradient_lines(const T* dy, const T* y, T* dx, std::int64_t size, std::int64_t inner, std::int64_t count) {
    Row<T> powers;
    LineSums<T> sums(count);
    for (std::int64_t k = 0; k < size; ++k) {
        T* const sum = sums.next();
        for (std::int64_t j = 0; j < count; ++j)
            sum[j] += logarithm ? dy[k * inner + j] : dy[k * inner + j] * y[k * inner + j];
    }
    const T* const sum = sums.rounded();
    for (std::int64_t k = 0; k < size; ++k) {
        const T *from = dy + k * inner, *value = y + k * inner;
        T* const to = dx + k * inner;
        if constexpr (logarithm) {
            run_unary(functor::Exp(), value, powers.data(), count);
            for (std::int64_t j = 0; j < count; ++j) to[j] = from[j] - powers[static_cast<std::size_t>(j)] * sum[j];
        } else {
            for (std::int64_t j = 0; j < count; ++j) to[j] = value[j] * (from[j] - sum[j]);
        }
    }
}

template <bool logarithm>
std::unique_ptr<Kernel> make_softmax_backward(const SoftmaxBackward<logarithm>& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [lines = Lines(request.in[0].shape, operation.dim), threads = request.threads](const KernelArgs& call) {
                for_lines(lines, threads, [&](std::int64_t first, std::int64_t count) {
                    const T *dy = call.input<T>(0) + first, *y = call.input<T>(1) + first;
                    T* const dx = call.output<T>(0) + first;
                    if (lines.inner == 1)
                        softmax_gradient_line<logarithm>(dy, y, dx, lines.size);
                    else
                        softmax_gradient_lines<logarithm>(dy, y, dx, lines.size, lines.inner, count);
                });
            });
    });
}

}  // namespace

void add_softmax_kernels(KernelTable& table) {
    table.add<SoftmaxForward<false>, make_softmax_forward<false>>();
    table.add<SoftmaxBackward<false>, make_softmax_backward<false>>();
    table.add<SoftmaxForward<true>, make_softmax_forward<true>>();
    table.add<SoftmaxBackward<true>, make_softmax_backward<true>>();
}

}  // namespace lockstep::cpu
