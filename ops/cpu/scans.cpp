// CumulativeSum: of floats in doubles, of integers modulo 2^64.
#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/lines.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/tensor_operations.h"

namespace lockstep::cpu {
namespace {

template <class T>
using Cumulated = std::conditional_t<std::is_integral_v<T>, std::uint64_t, double>;

/// `count` lines of adjacent elements, one after another; backwards if `step` is -1. Several at a time: an addition
/// waits for the one before it in its line.
template <int count, class T>
void scan_lines(const T* x, T* y, std::int64_t size, std::int64_t step) {
    std::array<Cumulated<T>, count> sums{};
    const std::int64_t first = step < 0 ? size - 1 : 0;
    for (std::int64_t i = 0; i < size; ++i)
        for (std::int64_t line = 0; line < count; ++line) {
            const std::int64_t at = line * size + first + i * step;
            Cumulated<T>& sum = sums[static_cast<std::size_t>(line)];
            sum += static_cast<Cumulated<T>>(x[at]);
            y[at] = static_cast<T>(sum);
        }
}

constexpr std::int64_t columns_at_once = 256;

/// `count` adjacent columns, at most columns_at_once, whose rows are `step` apart.
template <class T>
void scan_columns(const T* x, T* y, std::int64_t size, std::int64_t step, std::int64_t count) {
    std::array<Cumulated<T>, columns_at_once> sums{};
    for (std::int64_t i = 0; i < size; ++i) {
        const T* const from = x + i * step;
        T* const to = y + i * step;
        for (std::int64_t j = 0; j < count; ++j) {
            Cumulated<T>& sum = sums[static_cast<std::size_t>(j)];
            sum += static_cast<Cumulated<T>>(from[j]);
            to[j] = static_cast<T>(sum);
        }
    }
}

/// Parts [begin, end) of x (outer, size, inner): lines if `inner` is 1, otherwise blocks of columns.
template <class T>
void scan(const T* x, T* y, std::int64_t size, std::int64_t inner, bool reverse, std::int64_t begin, std::int64_t end) {
    if (inner == 1) {
        constexpr std::int64_t together = 4;
        const std::int64_t step = reverse ? -1 : 1;
        std::int64_t line = begin;
        for (; line + together <= end; line += together)
            scan_lines<together>(x + line * size, y + line * size, size, step);
        for (; line < end; ++line) scan_lines<1>(x + line * size, y + line * size, size, step);
        return;
    }
    const std::int64_t blocks = ceil_div(inner, columns_at_once), last = reverse ? (size - 1) * inner : 0;
    for (std::int64_t part = begin; part < end; ++part) {
        const std::int64_t column = part % blocks * columns_at_once, at = part / blocks * size * inner + column + last;
        scan_columns(x + at, y + at, size, reverse ? -inner : inner, std::min(columns_at_once, inner - column));
    }
}

std::unique_ptr<Kernel> make_cumulative_sum(const CumulativeSum& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    const Lines lines(request.in[0].shape, operation.dim);
    const auto make = [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([lines, threads = request.threads, reverse = operation.reverse](const KernelArgs& call) {
            const std::int64_t inner = lines.inner;
            const std::int64_t parts = lines.outer * (inner == 1 ? 1 : ceil_div(inner, columns_at_once));
            for_parts(worthwhile_threads(threads, lines.count() * lines.size), parts, inner == 1 ? 4 : 1,
                      [&](std::int64_t begin, std::int64_t end) {
                          scan(call.input<T>(0), call.output<T>(0), lines.size, inner, reverse, begin, end);
                      });
        });
    };
    const DType dtype = request.in[0].dtype;
    return dtype == DType::i64 ? make(std::int64_t{}) : for_floating(operation, dtype, make);
}

}  // namespace

void add_scan_kernels(KernelTable& table) { table.add<CumulativeSum, make_cumulative_sum>(); }

}  // namespace lockstep::cpu
