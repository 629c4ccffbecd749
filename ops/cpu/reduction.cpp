// Sum, ArgMax and Extreme.
#include <algorithm>
#include <type_traits>

#include "lockstep/ops/cpu/chunks.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/lines.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/cpu/strided.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/selection_operations.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {
namespace {

// ---- sum --------------------------------------------------------------------------------------------------------

/// `shape` with size 1 in the dims whose bit in `dims` is `bit`.
Shape without(Shape shape, std::uint32_t dims, bool bit) {
    for (int i = 0; i < shape.dims(); ++i)
        if (((dims >> i & 1u) != 0) == bit) shape[i] = 1;
    return shape;
}

bool innermost_is_summed(const Shape& shape, std::uint32_t dims) {
    for (int i = shape.dims() - 1; i >= 0; --i)
        if (shape[i] != 1) return (dims >> i & 1u) != 0;
    return true;
}

template <class In>
using Accumulator = std::conditional_t<std::is_floating_point_v<In>, double, std::uint64_t>;  // integers wrap around

template <class In>
Accumulator<In> sum_run(const In* x, std::int64_t n) {
    if constexpr (std::is_floating_point_v<In>) {
        return loops<In>().sum(x, n);
    } else {
        std::uint64_t sum = 0;
        for (std::int64_t i = 0; i < n; ++i) sum += static_cast<std::uint64_t>(x[i]);
        return sum;
    }
}

template <class In, class Out>
void add_row(const In* x, Out* y, std::int64_t n) {
    if constexpr (std::is_floating_point_v<In>) {
        binary_loops<In, functor::Add>()[0](y, x, y, n);
    } else {
        for (std::int64_t i = 0; i < n; ++i)
            y[i] = static_cast<Out>(static_cast<std::uint64_t>(y[i]) + static_cast<std::uint64_t>(x[i]));
    }
}

/// Row-major x (In) to row-major y (Out).
template <class In, class Out>
class SumKernel final : public Kernel {
public:
    SumKernel(const TensorMeta& x, const TensorMeta& y, std::uint32_t dims)
        : kept_(without(x.shape, dims, true), {x.strides, y.strides}),
          summed_(without(x.shape, dims, false), {x.strides}),
          along_runs_(innermost_is_summed(x.shape, dims)),
          windows_(std::is_floating_point_v<In> && along_runs_ && summed_.run() <= 8 && summed_.steps()[0] == 1 &&
                   summed_.rows() * summed_.run() <= 64 && kept_.run() > 1 && kept_.steps()[0] == summed_.run() &&
                   kept_.steps()[1] == 1),
          outputs_(y.numel()),
          empty_(x.numel() == 0),
          whole_(x.numel()) {}

    std::size_t scratch_bytes() const override {
        return is_total() ? static_cast<std::size_t>(chunk_count(whole_)) * sizeof(double) : 0;
    }

    void run(const KernelArgs& call) const override {
        const In* x = call.input<In>(0);
        Out* y = call.output<Out>(0);
        if (empty_) {
            std::fill_n(y, outputs_, Out(0));
        } else if (is_total()) {
            sum_total(x, y, static_cast<double*>(call.scratch));
        } else if (windows_) {
            sum_windows(x, y);
        } else if (along_runs_) {
            sum_runs(x, y);
        } else {
            sum_rows(x, y);
        }
    }

private:
    /// A single sum over all elements, of floats: divided into chunks.
    bool is_total() const { return std::is_floating_point_v<In> && outputs_ == 1 && whole_ > chunk_elements; }

    void sum_total(const In* x, Out* y, double* partial) const {
        *y = static_cast<Out>(sum_chunks(threads, whole_, partial, [&](std::int64_t begin, std::int64_t end) {
            return sum_run(x + begin, end - begin);
        }));
    }

    /// Consecutive elements are added up: every output is the sum of some runs.
    void sum_runs(const In* x, Out* y) const {
        const std::int64_t work = summed_.rows() * summed_.run();
        const std::int64_t grain = std::max<std::int64_t>(1, element_grain / std::max<std::int64_t>(1, work));
        const auto element = [&](std::int64_t from, std::int64_t to) {
            Accumulator<In> sum = 0;
            summed_.for_rows(0, summed_.rows(),
                             [&](const auto& at) { sum += sum_run(x + from + at[0], summed_.run()); });
            y[to] = static_cast<Out>(sum);
        };
        for_parts(threads, kept_.rows() * kept_.run(), grain,
                  [&](std::int64_t begin, std::int64_t end) { for_elements(begin, end, element); });
    }

    /// Short adjacent runs, at most 64 elements of a sum, are added up for many outputs at once.
    void sum_windows(const In* x, Out* y) const {
        if constexpr (std::is_floating_point_v<In>) {
            const auto run = static_cast<int>(summed_.run());
            const std::int64_t elements = kept_.run() * summed_.rows() * run;
            const std::int64_t grain = std::max<std::int64_t>(1, element_grain / elements);
            for_parts(worthwhile_threads(threads, kept_.rows() * elements), kept_.rows(), grain,
                      [&](std::int64_t begin, std::int64_t end) {
                          kept_.for_rows(begin, end, [&](const auto& kept) {
                              std::fill_n(y + kept[1], kept_.run(), Out(0));
                              summed_.for_rows(0, summed_.rows(), [&](const auto& at) {
                                  loops<In>().add_windows(x + kept[0] + at[0], run, y + kept[1], kept_.run());
                              });
                          });
                      });
        }
    }

    /// Rows of kept elements are added to each other.
    void sum_rows(const In* x, Out* y) const {
        // At least a block for each thread. They do not affect sums, each of which is in one block.
        const std::int64_t each = ceil_div(kept_.run(), ceil_div(std::int64_t{threads}, kept_.rows()));
        const std::int64_t columns = std::clamp<std::int64_t>(round_up(each, 64), 256, 2048);
        const std::int64_t blocks = ceil_div(kept_.run(), columns);
        for_parts(threads, kept_.rows() * blocks, 1, [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t part = begin; part < end; ++part) {
                const std::int64_t column = part % blocks * columns;
                const std::int64_t count = std::min(columns, kept_.run() - column);
                kept_.for_rows(part / blocks, part / blocks + 1, [&](const auto& kept) {
                    Out* const to = y + kept[1] + column;
                    std::fill_n(to, count, Out(0));
                    summed_.for_rows(0, summed_.rows(), [&](const auto& at) {
                        for (std::int64_t i = 0; i < summed_.run(); ++i)
                            add_row(x + kept[0] + column + at[0] + i * summed_.steps()[0], to, count);
                    });
                });
            }
        });
    }

    /// Calls element(offset in x, offset in y) for kept elements [begin, end).
    template <class Element>
    void for_elements(std::int64_t begin, std::int64_t end, const Element& element) const {
        const std::int64_t run = kept_.run();
        std::int64_t at = begin;
        while (at < end) {
            const std::int64_t row = at / run, from = at % run, to = std::min(run, from + end - at);
            kept_.for_rows(row, row + 1, [&](const auto& offset) {
                for (std::int64_t i = from; i < to; ++i)
                    element(offset[0] + i * kept_.steps()[0], offset[1] + i * kept_.steps()[1]);
            });
            at += to - from;
        }
    }

    StridedWalk<2> kept_;
    StridedWalk<1> summed_;
    bool along_runs_, windows_;
    std::int64_t outputs_;
    bool empty_;
    std::int64_t whole_;
};

template <class In>
std::unique_ptr<Kernel> make_integer_sum(const Sum& operation, const KernelRequest& request) {
    const TensorMeta &x = request.in[0], &y = request.out[0];
    switch (y.dtype) {
        case DType::i64: return std::make_unique<SumKernel<In, std::int64_t>>(x, y, operation.dims);
        case DType::i32: return std::make_unique<SumKernel<In, std::int32_t>>(x, y, operation.dims);
        case DType::u8: return std::make_unique<SumKernel<In, std::uint8_t>>(x, y, operation.dims);
        default: unsupported_dtype(operation, y.dtype);
    }
}

std::unique_ptr<Kernel> make_sum(const Sum& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    const DType dtype = request.in[0].dtype;
    if (is_floating(dtype) && request.out[0].dtype != dtype) unsupported_dtype(operation, request.out[0].dtype);
    const TensorMeta &x = request.in[0], &y = request.out[0];
    switch (dtype) {
        case DType::f32: return std::make_unique<SumKernel<float, float>>(x, y, operation.dims);
        case DType::f64: return std::make_unique<SumKernel<double, double>>(x, y, operation.dims);
        case DType::i32: return make_integer_sum<std::int32_t>(operation, request);
        case DType::i64: return make_integer_sum<std::int64_t>(operation, request);
        case DType::u8: return make_integer_sum<std::uint8_t>(operation, request);
        case DType::boolean: return make_integer_sum<bool>(operation, request);
        default: unsupported_dtype(operation, dtype);
    }
}

// ---- argmax -----------------------------------------------------------------------------------------------------

/// The first largest elements in `count` adjacent columns; NaN is the largest, as in PyTorch.
template <class T>
void argmax_in_columns(const T* x, std::int64_t size, std::int64_t stride, std::int64_t count, std::int64_t* y) {
    if constexpr (std::is_floating_point_v<T>) {
        if (stride == 1)
            *y = loops<T>().argmax(x, size);
        else
            loops<T>().argmax_columns(x, size, stride, count, y);
    } else {
        for (std::int64_t j = 0; j < count; ++j) {
            std::int64_t best = 0;
            for (std::int64_t i = 1; i < size; ++i)
                if (x[i * stride + j] > x[best * stride + j]) best = i;
            y[j] = best;
        }
    }
}

/// x (outer, size, inner).
template <class T>
std::unique_ptr<Kernel> make_argmax_of(int dim, const KernelRequest& request) {
    const Lines lines(request.in[0].shape, dim);
    return make_kernel([lines, threads = request.threads](const KernelArgs& call) {
        const std::int64_t inner = lines.inner, size = lines.size, outputs = lines.count();
        if (outputs == 0) return;
        const T* x = call.input<T>(0);
        auto* y = call.output<std::int64_t>(0);
        const std::int64_t width = std::min<std::int64_t>(inner, argmax_columns_at_once);
        const std::int64_t tiles = ceil_div(inner, width);
        const std::int64_t grain = std::max<std::int64_t>(1, element_grain / std::max<std::int64_t>(1, size * width));
        for_parts(worthwhile_threads(threads, outputs * size), outputs / inner * tiles, grain,
                  [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t part = begin; part < end; ++part) {
                          const std::int64_t outer = part / tiles, column = part % tiles * width;
                          argmax_in_columns(x + outer * size * inner + column, size, inner,
                                            std::min(width, inner - column), y + outer * inner + column);
                      }
                  });
    });
}

std::unique_ptr<Kernel> make_argmax(const ArgMax& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    switch (request.in[0].dtype) {
        case DType::f32: return make_argmax_of<float>(operation.dim, request);
        case DType::f64: return make_argmax_of<double>(operation.dim, request);
        case DType::i64: return make_argmax_of<std::int64_t>(operation.dim, request);
        default: unsupported_dtype(operation, request.in[0].dtype);
    }
}

// ---- largest and smallest elements ------------------------------------------------------------------------------

/// F of both, element by element; y may be a.
template <class F, class T>
void combine(const T* a, const T* b, T* y, std::int64_t n) {
    if constexpr (std::is_floating_point_v<T>)
        binary_loops<T, F>()[0](a, b, y, n);
    else
        for (std::int64_t i = 0; i < n; ++i) y[i] = F().value(a[i], b[i]);
}

/// F of `n` adjacent elements: the first of equal zeros, and the first NaN, in any order of comparisons.
template <class F, class T>
T extreme_of_run(const T* x, std::int64_t n) {
    if constexpr (!std::is_floating_point_v<T>) {
        T best = x[0];
        for (std::int64_t i = 1; i < n; ++i) best = F().value(best, x[i]);
        return best;
    } else {
        const T best = loops<T>().extremes[std::is_same_v<F, functor::Minimum> ? 1 : 0](x, n);
        if (best == 0) return *std::find(x, x + n, T(0));
        return best == best ? best : *std::find_if(x, x + n, [](T value) { return value != value; });
    }
}

/// x (outer, size, inner): runs if `inner` is 1, otherwise blocks of columns.
template <class F, class T>
std::unique_ptr<Kernel> make_extreme_of(int dim, const KernelRequest& request) {
    return make_kernel([lines = Lines(request.in[0].shape, dim), threads = request.threads](const KernelArgs& call) {
        constexpr std::int64_t columns = 1024;
        const std::int64_t inner = lines.inner, size = lines.size;
        if (lines.count() == 0) return;
        const std::int64_t blocks = ceil_div(inner, columns), work = size * std::min(inner, columns);
        for_parts(worthwhile_threads(threads, lines.count() * size), lines.outer * blocks,
                  std::max<std::int64_t>(1, element_grain / work), [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t part = begin; part < end; ++part) {
                          const std::int64_t outer = part / blocks, column = part % blocks * columns;
                          const T* const x = call.input<T>(0) + outer * size * inner + column;
                          T* const y = call.output<T>(0) + outer * inner + column;
                          if (inner == 1) {
                              *y = extreme_of_run<F>(x, size);
                              continue;
                          }
                          const std::int64_t count = std::min(columns, inner - column);
                          std::copy_n(x, count, y);
                          for (std::int64_t k = 1; k < size; ++k) combine<F>(y, x + k * inner, y, count);
                      }
                  });
    });
}

std::unique_ptr<Kernel> make_extreme(const Extreme& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    const auto make = [&](auto zero) {
        using T = decltype(zero);
        return operation.smallest ? make_extreme_of<functor::Minimum, T>(operation.dim, request)
                                  : make_extreme_of<functor::Maximum, T>(operation.dim, request);
    };
    const DType dtype = request.in[0].dtype;
    return dtype == DType::i64 ? make(std::int64_t{}) : for_floating(operation, dtype, make);
}

}  // namespace

void add_reduction_kernels(KernelTable& table) {
    table.add<Sum, make_sum>();
    table.add<ArgMax, make_argmax>();
    table.add<Extreme, make_extreme>();
}

}  // namespace lockstep::cpu
