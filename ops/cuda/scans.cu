// CumulativeSum: sums of chunks of every line, the sums before each chunk, and the elements of each chunk.
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/running_sum.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

namespace {

/// x (outer, size, inner) in chunks along `size`. Adjacent threads have adjacent lines.
struct ChunkedLines {
    std::int64_t size, inner, chunk, chunks;
    bool reverse;

    /// Element `i` of the line to which chunk number `n` (outer, chunks, inner) belongs.
    LOCKSTEP_HD_INLINE std::int64_t element(std::int64_t n, std::int64_t i) const {
        return n / inner / chunks * size * inner + (reverse ? size - 1 - i : i) * inner + n % inner;
    }
    LOCKSTEP_HD_INLINE std::int64_t begin(std::int64_t n) const { return n / inner % chunks * chunk; }
    LOCKSTEP_HD_INLINE std::int64_t end(std::int64_t n) const {
        const std::int64_t after = begin(n) + chunk;
        return after < size ? after : size;
    }
};

template <class T>
struct SumChunk {
    ChunkedLines lines;
    const T* x;
    SumOf<T>* sums;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t n) const {
        SumOf<T> sum{};
        for (std::int64_t i = lines.begin(n); i < lines.end(n); ++i) sum.add(x[lines.element(n, i)]);
        sums[n] = sum;
    }
};

/// Replaces the sum of each chunk by that of the chunks before it.
template <class T>
struct SumBefore {
    ChunkedLines lines;
    SumOf<T>* sums;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t line) const {
        SumOf<T>* const first = sums + line / lines.inner * lines.chunks * lines.inner + line % lines.inner;
        SumOf<T> before{};
        for (std::int64_t chunk = 0; chunk < lines.chunks; ++chunk) {
            const SumOf<T> sum = first[chunk * lines.inner];
            first[chunk * lines.inner] = before;
            before.add(sum);
        }
    }
};

template <class T>
struct ScanChunk {
    ChunkedLines lines;
    const T* x;
    const SumOf<T>* before;
    T* y;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t n) const {
        SumOf<T> sum = before[n];
        for (std::int64_t i = lines.begin(n); i < lines.end(n); ++i) {
            const std::int64_t at = lines.element(n, i);
            sum.add(x[at]);
            y[at] = sum.value();
        }
    }
};

KernelPtr make_cumulative_sum(const CumulativeSum& op, KernelRequest& request) {
    request.want_contiguous(0);
    const Shape& shape = request.in[0].shape;
    ChunkedLines lines{shape[op.dim], 1, 32, 1, op.reverse};
    for (int i = op.dim + 1; i < shape.dims(); ++i) lines.inner *= shape[i];
    while (lines.chunk * lines.chunk < lines.size) lines.chunk *= 2;  // about as many chunks as elements of each
    lines.chunks = ceil_div(lines.size, lines.chunk);
    const std::int64_t count = lines.size == 0 ? 0 : shape.numel() / lines.size;
    return visit_float_or_i64(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(
            request,
            [lines, count](const Queue& queue, const KernelArgs& v) {
                auto* const sums = static_cast<SumOf<T>*>(v.scratch);
                const std::int64_t chunks = count * lines.chunks;
                launch(queue, "cumsum_chunks", chunks, SumChunk<T>{lines, v.input<T>(0), sums});
                launch(queue, "cumsum_before", count, SumBefore<T>{lines, sums});
                launch(queue, "cumsum", chunks, ScanChunk<T>{lines, v.input<T>(0), sums, v.output<T>(0)});
            },
            static_cast<std::size_t>(count * lines.chunks) * sizeof(SumOf<T>));
    });
}

}  // namespace

void add_scan_kernels(KernelTable& table) { table.add<CumulativeSum, make_cumulative_sum>(); }

}  // namespace lockstep::cuda
