// CumulativeSum, in doubles.
#include <algorithm>
#include <array>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/tensor_operations.h"

namespace lockstep::cpu {
namespace {

/// `count` lines, `distance` apart, whose elements are `step` apart. Several at a time: an addition waits for the one
/// before it in its line.
template <int count, class T>
void scan_lines(const T* x, T* y, std::int64_t size, std::int64_t step, std::int64_t distance) {
    std::array<double, count> sums{};
    for (std::int64_t i = 0; i < size; ++i)
        for (std::int64_t line = 0; line < count; ++line) {
            double& sum = sums[static_cast<std::size_t>(line)];
            sum += static_cast<double>(x[i * step + line * distance]);
            y[i * step + line * distance] = static_cast<T>(sum);
        }
}

/// Lines [begin, end) of x (outer, size, inner).
template <class T>
void scan(const T* x, T* y, std::int64_t size, std::int64_t inner, bool reverse, std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t together = 8;
    const std::int64_t first = reverse ? (size - 1) * inner : 0, step = reverse ? -inner : inner;
    for (std::int64_t line = begin; line < end;) {
        const std::int64_t at = line / inner * inner * size + line % inner + first;
        // Lines that are adjacent, or one after another.
        const std::int64_t alike = inner == 1 ? end - line : std::min(end - line, inner - line % inner);
        const std::int64_t distance = inner == 1 ? size : 1;
        if (alike >= together) {
            scan_lines<together>(x + at, y + at, size, step, distance);
            line += together;
        } else {
            scan_lines<1>(x + at, y + at, size, step, distance);
            ++line;
        }
    }
}

std::unique_ptr<Kernel> make_cumulative_sum(const CumulativeSum& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    const Shape& shape = request.in[0].shape;
    std::int64_t inner = 1;
    for (int i = operation.dim + 1; i < shape.dims(); ++i) inner *= shape[i];
    const std::int64_t size = shape[operation.dim], lines = size == 0 ? 0 : shape.numel() / size;
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([=, threads = request.threads, reverse = operation.reverse](const KernelArgs& call) {
            for_parts(worthwhile_threads(threads, lines * size), lines, 8, [&](std::int64_t begin, std::int64_t end) {
                scan(call.input<T>(0), call.output<T>(0), size, inner, reverse, begin, end);
            });
        });
    });
}

}  // namespace

void add_scan_kernels(KernelTable& table) { table.add<CumulativeSum, make_cumulative_sum>(); }

}  // namespace lockstep::cpu
