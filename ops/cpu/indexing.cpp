// Selection by an index, and sums of elements with equal indices.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/cpu/report.h"
#include "lockstep/ops/cpu/strided_rows.h"
#include "lockstep/ops/internal/indexing_operations.h"
#include "lockstep/ops/internal/visit_size.h"
#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {
namespace {

/// Reports the first index that is not in [0, size).
void check_indices(const KernelArgs& call, const std::int64_t* index, std::int64_t count, std::int64_t size,
                   std::int64_t per_row, bool batch) {
    for (std::int64_t i = 0; i < count; ++i)
        if (index[i] < 0 || index[i] >= size)
            return report(call, StatusCode::index_out_of_range, (batch ? call.first_row : 0) + i / per_row, index[i]);
}

/// A row-major tensor as (outer, size, inner) around a dimension.
struct Around {
    std::int64_t outer = 1, size = 1, inner = 1;

    Around(const Shape& shape, int dim) {
        for (int i = 0; i < shape.dims(); ++i) (i < dim ? outer : i == dim ? size : inner) *= shape[i];
    }
};

// ---- one index for all lines ------------------------------------------------------------------------------------

/// Consecutive indices, ascending or descending: those of repeat, roll, flip and slices.
struct IndexRun {
    std::int64_t begin, length;  ///< positions in the index
    std::int64_t from, step;     ///< the first one, and 1 or -1
};

/// An index as a few long runs, or as none.
class IndexRuns {
public:
    IndexRuns(const std::int64_t* index, std::int64_t count, std::int64_t size) {
        constexpr std::int64_t shortest = 16;  // on average
        for (std::int64_t i = 0; i < count;) {
            std::int64_t end = i + 1;
            const std::int64_t step = end < count && index[end] < index[i] ? -1 : 1;
            while (end < count && index[end] == index[end - 1] + step) ++end;
            const std::int64_t last = index[end - 1];
            const bool good = std::min(index[i], last) >= 0 && std::max(index[i], last) < size;
            if (!good || count_ == runs_.size() || static_cast<std::int64_t>(count_ + 1) * shortest > count) {
                count_ = 0;
                return;
            }
            runs_[count_++] = {i, end - i, index[i], step};
            i = end;
        }
    }
    const IndexRun* begin() const { return runs_.data(); }
    const IndexRun* end() const { return runs_.data() + count_; }
    bool empty() const { return count_ == 0; }

private:
    std::array<IndexRun, 16> runs_;
    std::size_t count_ = 0;
};

/// Elements [first, last) of a line of the result.
template <class Bits>
void select_runs(const Bits* line, const IndexRuns& runs, Bits* y, std::int64_t first, std::int64_t last) {
    for (const IndexRun& run : runs) {
        const std::int64_t begin = std::max(first, run.begin), count = std::min(last, run.begin + run.length) - begin;
        if (count <= 0) continue;
        const Bits* const from = line + run.from + (begin - run.begin) * run.step;
        if (run.step == 1)
            std::copy_n(from, count, y + begin);
        else
            for (std::int64_t i = 0; i < count; ++i) y[begin + i] = from[-i];
    }
}

/// Elements [begin, end) of the result, if the selected dimension is the innermost one.
template <class Bits>
void select_elements(const Bits* x, const std::int64_t* index, const IndexRuns& runs, Bits* y, std::int64_t size,
                     std::int64_t count, std::int64_t begin, std::int64_t end) {
    while (begin < end) {
        const std::int64_t line = begin / count, first = begin - line * count,
                           last = std::min(count, first + end - begin);
        const Bits* const from = x + line * size;
        Bits* const to = y + line * count;
        if (!runs.empty())
            select_runs(from, runs, to, first, last);
        else
            for (std::int64_t i = first; i < last; ++i) {
                const std::int64_t j = index[i];
                to[i] = j < 0 || j >= size ? Bits(0) : from[j];
            }
        begin += last - first;
    }
}

/// Adds dy to the selected elements [begin, end) of a line.
template <class T>
void add_runs(const T* dy, const IndexRuns& runs, T* sums, std::int64_t begin, std::int64_t end) {
    for (const IndexRun& run : runs) {
        // Positions whose index is in [begin, end).
        const std::int64_t low = run.step == 1 ? begin - run.from : run.from - end + 1,
                           high = run.step == 1 ? end - run.from : run.from - begin + 1;
        const std::int64_t first = std::max<std::int64_t>(0, low), count = std::min(run.length, high) - first;
        const T* const from = dy + run.begin + first;
        T* const to = sums + run.from + first * run.step;
        if (run.step == 1)
            for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
        else
            for (std::int64_t i = 0; i < count; ++i) to[-i] += from[i];
    }
}

template <class Bits>
std::unique_ptr<Kernel> make_index_select_of(const IndexSelect& operation, const KernelRequest& request) {
    return make_kernel([from = Around(request.in[0].shape, operation.dim), count = request.in[1].numel(),
                        per_row = operation.per_row, batch = operation.batch,
                        threads = request.threads](const KernelArgs& call) {
        const Bits* x = call.input<Bits>(0);
        const auto* index = call.input<std::int64_t>(1);
        Bits* y = call.output<Bits>(0);
        check_indices(call, index, count, from.size, per_row, batch);
        const std::int64_t rows = from.outer * count, inner = from.inner;
        const IndexRuns runs(index, inner == 1 ? count : 0, from.size);
        const std::int64_t grain = std::max<std::int64_t>(1, element_grain / std::max<std::int64_t>(1, inner));
        for_parts(worthwhile_threads(threads, rows * inner), rows, grain, [&](std::int64_t begin, std::int64_t end) {
            if (inner == 1) return select_elements(x, index, runs, y, from.size, count, begin, end);
            for (std::int64_t row = begin; row < end; ++row) {
                const std::int64_t o = row / count, j = index[row - o * count];
                Bits* const to = y + row * inner;
                if (j < 0 || j >= from.size)
                    std::fill_n(to, inner, Bits(0));
                else
                    std::copy_n(x + (o * from.size + j) * inner, inner, to);
            }
        });
    });
}

std::unique_ptr<Kernel> make_index_select(const IndexSelect& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return visit_size(request.out[0].dtype,
                      [&](auto bits) { return make_index_select_of<decltype(bits)>(operation, request); });
}

std::unique_ptr<Kernel> make_index_select_backward(const IndexSelectBackward& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([to = Around(request.out[0].shape, operation.dim), count = request.in[1].numel(),
                            ignored = operation.ignored, threads = request.threads](const KernelArgs& call) {
            const T* dy = call.input<T>(0);
            const auto* index = call.input<std::int64_t>(1);
            T* dx = call.output<T>(0);
            const int workers = worthwhile_threads(threads, to.outer * (to.size + count) * to.inner);
            const IndexRuns runs(index, to.inner == 1 && ignored < 0 ? count : 0, to.size);
            // A part reads the whole index, and owns some results.
            for_parts(workers, to.size, std::max<std::int64_t>(1, ceil_div(to.size, workers)),
                      [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t o = 0; o < to.outer; ++o) {
                              T* const sums = dx + o * to.size * to.inner;
                              std::fill(sums + begin * to.inner, sums + end * to.inner, T(0));
                              if (!runs.empty()) {
                                  add_runs(dy + o * count, runs, sums, begin, end);
                                  continue;
                              }
                              for (std::int64_t i = 0; i < count; ++i) {
                                  const std::int64_t j = index[i];
                                  if (j < begin || j >= end || j == ignored) continue;
                                  const T* const from = dy + (o * count + i) * to.inner;
                                  if (to.inner == 1)
                                      sums[j] += *from;
                                  else
                                      for (std::int64_t k = 0; k < to.inner; ++k) sums[j * to.inner + k] += from[k];
                              }
                          }
                      });
        });
    });
}

// ---- an index for each line -------------------------------------------------------------------------------------

/// Strides of row-major tensors of `shape`.
Shape row_major(const Shape& shape) { return TensorMeta::contiguous(DType::u8, shape).strides; }

/// `shape` with size 1 in a dimension.
Shape lines_of(Shape shape, int dim) {
    shape[dim] = 1;
    return shape;
}

/// y[i] = x[i * x_step + index[i] * along], or 0 for an index that is not in [0, size). Returns whether all are.
template <class Bits, class Step, class Along>
bool gather_row(const Bits* x, const std::int64_t* index, Bits* y, std::int64_t n, std::int64_t size, Step x_step,
                Along along) {
    bool all_good = true;
    for (std::int64_t i = 0; i < n; ++i) {
        const bool good = static_cast<std::uint64_t>(index[i]) < static_cast<std::uint64_t>(size);
        all_good &= good;
        const Bits found = x[i * x_step + (good ? index[i] : 0) * along];
        y[i] = good ? found : Bits(0);
    }
    return all_good;
}

template <class Bits>
std::unique_ptr<Kernel> make_gather_of(const Gather& operation, const KernelRequest& request) {
    const TensorMeta &x = request.in[0], &index = request.in[1];
    Shape x_strides = x.strides;
    const std::int64_t along = x_strides[operation.dim], size = x.shape[operation.dim];
    x_strides[operation.dim] = 0;
    return make_kernel([walk = StridedWalk<3>(index.shape, {index.strides, x_strides, request.out[0].strides}), along,
                        size, count = index.numel(), per_row = operation.per_row, batch = operation.batch,
                        threads = request.threads](const KernelArgs& call) {
        // Index and result are contiguous, so runs are as well.
        const auto* const index = call.input<std::int64_t>(1);
        if (size == 0) {
            std::fill_n(call.output<Bits>(0), count, Bits(0));
            return check_indices(call, index, count, size, per_row, batch);
        }
        using Zero = std::integral_constant<std::int64_t, 0>;
        using One = std::integral_constant<std::int64_t, 1>;
        std::atomic<bool> all_good = true;
        for_strided_rows(threads, walk, [&](const auto& at, std::int64_t n) {
            const auto* const j = index + at[0];
            const Bits* const from = call.input<Bits>(0) + at[1];
            Bits* const to = call.output<Bits>(0) + at[2];
            const std::int64_t x_step = walk.steps()[1];
            const bool good = x_step == 0 && along == 1 ? gather_row(from, j, to, n, size, Zero(), One())
                              : x_step == 1             ? gather_row(from, j, to, n, size, One(), along)
                                                        : gather_row(from, j, to, n, size, x_step, along);
            if (!good) all_good.store(false, std::memory_order_relaxed);
        });
        if (!all_good) check_indices(call, index, count, size, per_row, batch);
    });
}

std::unique_ptr<Kernel> make_gather(const Gather& operation, KernelRequest& request) {
    if (request.in[0].opaque != nullptr) request.want_contiguous(0);
    request.want_contiguous(1);
    require_contiguous_output(operation, request, 0);
    return visit_size(request.out[0].dtype,
                      [&](auto bits) { return make_gather_of<decltype(bits)>(operation, request); });
}

/// Calls work(offsets, lines) for lines of `length` elements, whose offsets are walk.steps() apart: for one line at a
/// time if their elements are `adjacent`, so that these are visited in the order of memory.
template <std::size_t count, class Work>
void for_lines(int threads, const StridedWalk<count>& walk, std::int64_t length, bool adjacent, const Work& work) {
    if (!adjacent) return for_strided_rows(threads, walk, work);
    const std::int64_t run = walk.run(), lines = walk.rows() * run;
    const std::int64_t grain = std::max<std::int64_t>(1, element_grain / std::max<std::int64_t>(1, length));
    for_parts(worthwhile_threads(threads, lines * length), lines, grain, [&](std::int64_t begin, std::int64_t end) {
        while (begin < end) {
            const std::int64_t row = begin / run, first = begin - row * run, last = std::min(run, first + end - begin);
            walk.for_rows(row, row + 1, [&](auto at) {
                for (std::size_t k = 0; k < count; ++k) at[k] += first * walk.steps()[k];
                for (std::int64_t i = first; i < last; ++i) {
                    work(at, 1);
                    for (std::size_t k = 0; k < count; ++k) at[k] += walk.steps()[k];
                }
            });
            begin += last - first;
        }
    });
}

template <class T>
std::unique_ptr<Kernel> make_scatter_sum_of(const ScatterSum& operation, const KernelRequest& request) {
    const Shape &shape = request.in[1].shape, &to_shape = request.out[0].shape;
    const int dim = operation.dim;
    const Shape source_strides = row_major(request.in[0].shape), index_strides = row_major(shape),
                strides = row_major(to_shape);
    return make_kernel([walk = StridedWalk<3>(lines_of(shape, dim), {index_strides, source_strides, strides}),
                        length = shape[dim], size = to_shape[dim], count = shape.numel(), outputs = to_shape.numel(),
                        along = std::array{index_strides[dim], source_strides[dim], strides[dim]},
                        per_row = operation.per_row, batch = operation.batch,
                        threads = request.threads](const KernelArgs& call) {
        const T* source = call.input<T>(0);
        const auto* index = call.input<std::int64_t>(1);
        T* y = call.output<T>(0);
        for_element_parts(threads, outputs,
                          [&](std::int64_t begin, std::int64_t end) { std::fill(y + begin, y + end, T(0)); });
        std::atomic<bool> all_good = true;
        for_lines(threads, walk, length, along[2] == 1, [&](const auto& at, std::int64_t n) {
            const auto [index_step, source_step, y_step] = walk.steps();
            bool good = true;
            for (std::int64_t i = 0; i < length; ++i) {
                const auto* j = index + at[0] + i * along[0];
                const T* from = source + at[1] + i * along[1];
                for (std::int64_t k = 0; k < n; ++k) {
                    const std::int64_t to = j[k * index_step];
                    if (to < 0 || to >= size) {
                        good = false;
                        continue;
                    }
                    T& sum = y[at[2] + k * y_step + to * along[2]];
                    sum = static_cast<T>(sum + from[k * source_step]);
                }
            }
            if (!good) all_good.store(false, std::memory_order_relaxed);
        });
        if (!all_good) check_indices(call, index, count, size, per_row, batch);
    });
}

std::unique_ptr<Kernel> make_scatter_sum(const ScatterSum& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return visit_dtype(request.out[0].dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
        using T = decltype(zero);
        if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, BFloat16> || std::is_same_v<T, bool>)
            unsupported_dtype(operation, request.out[0].dtype);
        else
            return make_scatter_sum_of<T>(operation, request);
    });
}

std::unique_ptr<Kernel> make_last_position(const LastPosition& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    const Shape &shape = request.in[0].shape, &to_shape = request.out[0].shape;
    const int dim = operation.dim;
    const Shape index_strides = row_major(shape), strides = row_major(to_shape);
    return make_kernel([walk = StridedWalk<2>(lines_of(shape, dim), {index_strides, strides}), length = shape[dim],
                        size = to_shape[dim], count = shape.numel(), outputs = to_shape.numel(),
                        index_along = index_strides[dim], along = strides[dim], per_row = operation.per_row,
                        batch = operation.batch, threads = request.threads](const KernelArgs& call) {
        const auto* index = call.input<std::int64_t>(0);
        auto* y = call.output<std::int64_t>(0);
        check_indices(call, index, count, size, per_row, batch);
        for_element_parts(threads, outputs,
                          [&](std::int64_t begin, std::int64_t end) { std::fill(y + begin, y + end, 0); });
        for_lines(threads, walk, length, along == 1, [&](const auto& at, std::int64_t n) {
            const auto [index_step, y_step] = walk.steps();
            for (std::int64_t i = 0; i < length; ++i)
                for (std::int64_t k = 0; k < n; ++k) {
                    const std::int64_t to = index[at[0] + i * index_along + k * index_step];
                    if (to >= 0 && to < size) y[at[1] + k * y_step + to * along] = i + 1;
                }
        });
    });
}

}  // namespace

void add_indexing_kernels(KernelTable& table) {
    table.add<IndexSelect, make_index_select>();
    table.add_half_types<IndexSelect, make_index_select>();
    table.add<IndexSelectBackward, make_index_select_backward>();
    table.add<Gather, make_gather>();
    table.add_half_types<Gather, make_gather>();
    table.add<ScatterSum, make_scatter_sum>();
    table.add<LastPosition, make_last_position>();
}

}  // namespace lockstep::cpu
