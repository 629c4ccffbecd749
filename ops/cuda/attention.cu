// Attention by chunks of queries: products by cuBLASLt, and kernels that turn rows of scores into weights and rows of
// their gradients. Scratch memory holds the scores of one chunk.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/ops/cuda/gemm.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/map.h"
#include "lockstep/ops/cuda/row_kernels.h"
#include "lockstep/ops/cuda/scalars.h"
#include "lockstep/ops/cuda/threshold.h"
#include "lockstep/ops/internal/attention_operations.h"
#include "lockstep/ops/internal/random_arithmetic.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

namespace {

enum class MaskKind : std::uint8_t { none, boolean, numbers };

/// Scores as rows: all heads of a group are one matrix of heads * L rows, because they share key and value.
struct ScoreRows {
    std::int64_t queries, keys, heads_of_group, groups;
    std::int64_t first_batch, first_row, rows;  // start of a chunk, and rows of each of its matrices
    std::int64_t all_rows;                      // rows of all matrices, for the statistics
    bool is_causal;
    MaskKind mask_kind;
    const void* mask;
    std::int64_t mask_steps[4];   // 0 along sizes of 1
    const AttentionDraws* draws;  // or null
    std::uint32_t threshold;

    /// A row of the chunk.
    struct Row {
        std::int64_t number;  // among all rows
        std::int64_t keys;    // to which the query may attend
        std::int64_t mask;    // first element
    };
    LOCKSTEP_HD_INLINE Row row(std::int64_t of_chunk) const {
        const std::int64_t matrix = of_chunk / rows, own = first_row + (of_chunk - matrix * rows);
        const std::int64_t batch = first_batch + matrix, query = own % queries;
        const std::int64_t n = batch / groups, h = batch % groups * heads_of_group + own / queries;
        return {batch * heads_of_group * queries + own, is_causal && query + 1 < keys ? query + 1 : keys,
                n * mask_steps[0] + h * mask_steps[1] + query * mask_steps[2]};
    }
    template <class Stored, class T>
    LOCKSTEP_HD_INLINE T masked(const Row& at, std::int64_t k, T score) const {
        constexpr T none = -std::numeric_limits<T>::infinity();
        if (mask_kind == MaskKind::none) return score;
        const std::int64_t place = at.mask + k * mask_steps[3];
        if (mask_kind == MaskKind::boolean) return static_cast<const std::uint8_t*>(mask)[place] != 0 ? score : none;
        const T bias = upcast(static_cast<const Stored*>(mask)[place]);
        return bias == none ? none : score + bias;
    }
    /// Whether dropout keeps a weight.
    LOCKSTEP_HD_INLINE bool keeps(const Row& at, std::int64_t k) const {
        if (draws == nullptr) return true;
        const std::uint64_t number = draws->first + static_cast<std::uint64_t>(at.number * keys + k);
        const auto bits = philox(draws->state, static_cast<std::uint32_t>(draws->ordinal), number >> 2);
        std::uint32_t own = bits[0];  // an index that is not constant would move the block to memory
        LOCKSTEP_UNROLL
        for (unsigned i = 1; i < 4; ++i)
            if ((number & 3) == i) own = bits[i];
        return !is_below(own, threshold);
    }
};

/// Scores become weights times factors of dropout.
template <class Stored>
struct WeightsOfRow {
    using T = UpcastType<Stored>;
    ScoreRows rows;
    Stored* scores;
    T* statistics;  // or null
    T keep;         // factor of weights that dropout keeps

    template <class Group>
    LOCKSTEP_ROW_FUNCTION void operator()(const Group& group, std::int64_t of_chunk) const {
        const ScoreRows::Row at = rows.row(of_chunk);
        Stored* const row = scores + of_chunk * rows.keys;
        T largest = -std::numeric_limits<T>::infinity(), sum = T(0);
        for (std::int64_t k = group.lane(); k < at.keys; k += Group::threads) {
            const T score = rows.template masked<Stored>(at, k, T(upcast(row[k])));
            if (score > largest) largest = score;
        }
        largest = largest_of(group, largest);
        if (largest == -std::numeric_limits<T>::infinity()) largest = T(0);
        for (std::int64_t k = group.lane(); k < at.keys; k += Group::threads)
            sum += std::exp(rows.template masked<Stored>(at, k, T(upcast(row[k]))) - largest);
        sum = sum_of(group, sum);
        const T inverse = sum == T(0) ? T(0) : T(1) / sum;
        for (std::int64_t k = group.lane(); k < rows.keys; k += Group::threads) {
            T weight = T(0);
            if (k < at.keys) {
                weight = std::exp(rows.template masked<Stored>(at, k, T(upcast(row[k]))) - largest) * inverse;
                weight *= rows.keeps(at, k) ? keep : T(0);
            }
            row[k] = CastTo<Stored>::from(weight);
        }
        if (statistics == nullptr || !group.leads()) return;
        statistics[at.number] = largest;
        statistics[rows.all_rows + at.number] = inverse;
    }
};

/// Scores become weights times factors of dropout, and the gradients of these become those of the scores.
template <class Stored>
struct GradientsOfRow {
    using T = UpcastType<Stored>;
    ScoreRows rows;
    Stored* scores;
    Stored* gradients;
    const T* statistics;
    T keep;

    template <class Group>
    LOCKSTEP_ROW_FUNCTION void operator()(const Group& group, std::int64_t of_chunk) const {
        const ScoreRows::Row at = rows.row(of_chunk);
        Stored *const row = scores + of_chunk * rows.keys, *const gradient = gradients + of_chunk * rows.keys;
        const T largest = statistics[at.number], inverse = statistics[rows.all_rows + at.number];
        const auto weight_of = [&](std::int64_t k) {
            return std::exp(rows.template masked<Stored>(at, k, T(upcast(row[k]))) - largest) * inverse;
        };
        T sum = T(0);
        for (std::int64_t k = group.lane(); k < at.keys; k += Group::threads)
            sum += weight_of(k) * (rows.keeps(at, k) ? keep : T(0)) * upcast(gradient[k]);
        sum = sum_of(group, sum);
        for (std::int64_t k = group.lane(); k < rows.keys; k += Group::threads) {
            T dropped = T(0), slope = T(0);
            if (k < at.keys) {
                const T weight = weight_of(k), factor = rows.keeps(at, k) ? keep : T(0);
                dropped = weight * factor;
                slope = weight * (factor * upcast(gradient[k]) - sum);
            }
            row[k] = CastTo<Stored>::from(dropped);
            gradient[k] = CastTo<Stored>::from(slope);
        }
    }
};

struct StoreDraws {
    const StepCounters* step;
    std::uint64_t ordinal, first;
    AttentionDraws* to;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t) const { *to = {*step, ordinal, first}; }
};

template <class T>
struct DropoutFactors {
    const AttentionDraws* draws;
    std::uint32_t threshold;
    T keep;
    T* y;
    LOCKSTEP_HD_INLINE void operator()(std::int64_t e) const {
        const std::uint64_t number = draws->first + static_cast<std::uint64_t>(e);
        const auto ordinal = static_cast<std::uint32_t>(draws->ordinal);
        y[e] = is_below(random_bits(draws->state, ordinal, number), threshold) ? T(0) : keep;
    }
};

/// MatrixSizes of the matrices: (rows, E) times (E, keys), `batches` times.
struct MatrixSizes {
    std::int64_t batches, rows, keys, width, value_width;
};

/// Matrices [first_batch, + batches), and of each the rows [first_row, + rows).
struct Chunk {
    std::int64_t first_batch, batches, first_row, rows;
    std::int64_t matrix_rows() const { return batches * rows; }
};

/// Chunks with at most `limit` bytes of scores, or with 256 rows: of whole matrices, or of parts of one.
std::vector<Chunk> chunks_of(const MatrixSizes& sizes, std::size_t bytes_of_row) {
    constexpr std::size_t limit = std::size_t{64} << 20;
    const auto rows =
        std::max<std::int64_t>(256, static_cast<std::int64_t>(limit / std::max<std::size_t>(bytes_of_row, 1)));
    const std::int64_t batches = std::max<std::int64_t>(1, rows / std::max<std::int64_t>(sizes.rows, 1));
    std::vector<Chunk> chunks;
    for (std::int64_t batch = 0; batch < sizes.batches; batch += batches)
        for (std::int64_t row = 0; row == 0 || row < sizes.rows; row += rows)
            chunks.push_back({batch, std::min(batches, sizes.batches - batch), row, std::min(rows, sizes.rows - row)});
    return chunks;
}

Matrix plain(std::int64_t rows, std::int64_t columns, std::int64_t batch_rows) {
    return {rows, columns, columns, 1, batch_rows * columns};
}

/// The products of the chunks of one size.
struct Products {
    std::unique_ptr<const Gemm> scores, y;                                  // query key^T scale; weights value
    std::unique_ptr<const Gemm> weights;                                    // dy value^T
    std::unique_ptr<const Gemm> query, key, key_again, value, value_again;  // "again": added to earlier chunks

    std::size_t scratch_bytes() const {
        std::size_t most = 0;
        for (const auto* each : {&scores, &y, &weights, &query, &key, &key_again, &value, &value_again})
            if (*each) most = std::max(most, (*each)->scratch_bytes());
        return most;
    }
};

/// Sizes, options and products of one call.
struct Attention {
    MatrixSizes sizes{};
    ScoreRows rows{};
    double scale = 1, p = 0;
    std::size_t size_of_element = 0;
    std::vector<Chunk> chunks{};
    std::vector<std::shared_ptr<const Products>> products{};  // one for each chunk
    std::size_t workspace = 0, matrix_bytes = 0;  // scratch of the products, and bytes of the scores of a chunk

    void* at(void* base, std::int64_t rows_before, std::int64_t columns) const {
        if (base == nullptr) return nullptr;  // a gradient that is not wanted
        return static_cast<char*>(base) + static_cast<std::size_t>(rows_before * columns) * size_of_element;
    }
    /// The first of a chunk's rows among those of all matrices.
    std::int64_t first_row(const Chunk& chunk) const { return chunk.first_batch * sizes.rows + chunk.first_row; }
    std::int64_t first_key(const Chunk& chunk) const { return chunk.first_batch * sizes.keys; }
    ScoreRows rows_of(const Chunk& chunk) const {
        ScoreRows own = rows;
        own.first_batch = chunk.first_batch;
        own.first_row = chunk.first_row;
        own.rows = chunk.rows;
        return own;
    }
};

/// The operands from `query` on, and the mask after them. `matrices`: of scores, in scratch memory.
Attention attention_of(KernelRequest& request, std::size_t query, bool is_causal, double scale, double p,
                       std::size_t matrices) {
    for (std::size_t i = query; i < query + 3; ++i) request.want_contiguous(i);
    const Shape &q = request.in[query].shape, &k = request.in[query + 1].shape, &v = request.in[query + 2].shape;
    Attention made;
    const std::int64_t heads = k[1] > 0 ? q[1] / k[1] : 0;
    made.sizes = {k[0] * k[1], heads * q[2], k[2], q[3], v[3]};
    made.rows.queries = q[2];
    made.rows.keys = k[2];
    made.rows.heads_of_group = heads;
    made.rows.groups = k[1];
    made.rows.all_rows = made.sizes.batches * made.sizes.rows;
    made.rows.is_causal = is_causal;
    made.rows.threshold = threshold_of(p);
    made.scale = scale;
    made.p = p;
    made.size_of_element = size_of(request.in[query].dtype);
    if (request.has_in(query + 3)) {
        if (request.in[query + 3].opaque) request.want_contiguous(query + 3);
        const TensorMeta& mask = request.in[query + 3];
        made.rows.mask_kind = mask.dtype == DType::boolean ? MaskKind::boolean : MaskKind::numbers;
        for (int d = 0; d < 4; ++d) made.rows.mask_steps[d] = mask.shape[d] == 1 ? 0 : mask.strides[d];
    }
    const std::size_t bytes_of_row = static_cast<std::size_t>(made.sizes.keys) * made.size_of_element;
    made.chunks = chunks_of(made.sizes, matrices * bytes_of_row);
    for (const Chunk& chunk : made.chunks)
        made.matrix_bytes = std::max(made.matrix_bytes, static_cast<std::size_t>(chunk.matrix_rows()) * bytes_of_row);
    made.matrix_bytes = round_up(made.matrix_bytes, scratch_alignment);
    return made;
}

/// Gives each chunk its products, which `make(chunk)` creates once for every size.
template <class Make>
void add_products(Attention& attention, const Make& make) {
    for (std::size_t i = 0; i < attention.chunks.size(); ++i) {
        const Chunk& chunk = attention.chunks[i];
        std::shared_ptr<const Products> found;
        for (std::size_t j = 0; j < i && !found; ++j)
            if (attention.chunks[j].batches == chunk.batches && attention.chunks[j].rows == chunk.rows)
                found = attention.products[j];
        if (!found) found = std::make_shared<const Products>(make(chunk));
        attention.products.push_back(found);
        attention.workspace = std::max(attention.workspace, found->scratch_bytes());
    }
    attention.workspace = round_up(attention.workspace, scratch_alignment);
}

/// Creates products for the device and dtype of a request.
struct GemmMaker {
    Device device;
    DType dtype;
    bool tf32;

    explicit GemmMaker(const KernelRequest& request, DType of)
        : device(request.device), dtype(of), tf32(uses_tf32(request)) {}
    std::unique_ptr<const Gemm> operator()(const Matrix& a, const Matrix& b, std::int64_t d_batch_rows,
                                           std::int64_t batch, const GemmResult& result = {}) const {
        return std::make_unique<const Gemm>(device, dtype, a, b, plain(a.rows, b.columns, d_batch_rows), batch, false,
                                            tf32, result);
    }
};

template <bool drops>
KernelPtr make_attention_forward(const AttentionForward<drops>& op, KernelRequest& request) {
    Attention attention = attention_of(request, 0, op.is_causal, op.scale, drops ? op.p : 0, 1);
    return visit_any_float(op.name, request.in[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        using T = UpcastType<Stored>;
        const GemmMaker gemm(request, request.in[0].dtype);
        add_products(attention, [&](const Chunk& chunk) {
            const MatrixSizes& s = attention.sizes;
            Products made;
            made.scores = gemm(plain(chunk.rows, s.width, s.rows), transposed(plain(s.keys, s.width, s.keys)),
                               chunk.rows, chunk.batches, {attention.scale});
            made.y = gemm(plain(chunk.rows, s.keys, chunk.rows), plain(s.keys, s.value_width, s.keys), s.rows,
                          chunk.batches);
            return made;
        });
        const std::size_t before_draws = attention.workspace + attention.matrix_bytes;
        return make_cuda_kernel(
            request,
            [=](const Queue& queue, const KernelArgs& v) {
                auto* const workspace = static_cast<char*>(v.scratch);
                auto* const scores = workspace + attention.workspace;
                const AttentionDraws* draws = nullptr;
                if constexpr (drops) {
                    auto* const stored = v.out[2] != nullptr
                                             ? v.output<AttentionDraws>(2)
                                             : reinterpret_cast<AttentionDraws*>(workspace + before_draws);
                    launch(queue, "attention_draws", 1,
                           StoreDraws{v.step, v.ordinal, element::first_draw(op.by, v.first_row, op.row_size, v.shard),
                                      stored});
                    draws = stored;
                }
                const MatrixSizes& s = attention.sizes;
                for (std::size_t i = 0; i < attention.chunks.size(); ++i) {
                    const Chunk& chunk = attention.chunks[i];
                    const std::int64_t row = attention.first_row(chunk), key = attention.first_key(chunk);
                    attention.products[i]->scores->run(queue, v.context.device, attention.at(v.in[0], row, s.width),
                                                       attention.at(v.in[1], key, s.width), scores, nullptr, workspace);
                    WeightsOfRow<Stored> weights{attention.rows_of(chunk), reinterpret_cast<Stored*>(scores),
                                                 v.output<T>(1), element::dropout_factor<T>(attention.p)};
                    weights.rows.mask = v.in[3];
                    weights.rows.draws = draws;
                    launch_rows_in_memory(queue, "attention_weights", chunk.matrix_rows(), s.keys, weights);
                    attention.products[i]->y->run(queue, v.context.device, scores,
                                                  attention.at(v.in[2], key, s.value_width),
                                                  attention.at(v.out[0], row, s.value_width), nullptr, workspace);
                }
            },
            before_draws + (drops ? scratch_alignment : 0));
    });
}

KernelPtr make_attention_backward(const AttentionBackward& op, KernelRequest& request) {
    request.want_contiguous(0);
    request.want_contiguous(5);
    Attention attention = attention_of(request, 1, op.is_causal, op.scale, op.p, 2);
    const bool wants_query = request.has_out(0), wants_key = request.has_out(1), wants_value = request.has_out(2);
    return visit_any_float(op.name, request.in[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        using T = UpcastType<Stored>;
        const GemmMaker gemm(request, request.in[0].dtype);
        add_products(attention, [&](const Chunk& chunk) {
            const MatrixSizes& s = attention.sizes;
            const Matrix query = plain(chunk.rows, s.width, s.rows), key = plain(s.keys, s.width, s.keys);
            const Matrix dy = plain(chunk.rows, s.value_width, s.rows);
            const Matrix scores = plain(chunk.rows, s.keys, chunk.rows);
            const bool in_parts = chunk.rows < s.rows;
            Products made;
            made.scores = gemm(query, transposed(key), chunk.rows, chunk.batches, {attention.scale});
            made.weights = gemm(dy, transposed(plain(s.keys, s.value_width, s.keys)), chunk.rows, chunk.batches);
            if (wants_query) made.query = gemm(scores, key, s.rows, chunk.batches, {attention.scale});
            if (wants_key) made.key = gemm(transposed(scores), query, s.keys, chunk.batches, {attention.scale});
            if (wants_value) made.value = gemm(transposed(scores), dy, s.keys, chunk.batches);
            if (wants_key && in_parts)
                made.key_again = gemm(transposed(scores), query, s.keys, chunk.batches, {attention.scale, true});
            if (wants_value && in_parts)
                made.value_again = gemm(transposed(scores), dy, s.keys, chunk.batches, {1, true});
            return made;
        });
        return make_cuda_kernel(
            request,
            [attention](const Queue& queue, const KernelArgs& v) {
                auto* const workspace = static_cast<char*>(v.scratch);
                auto *const scores = workspace + attention.workspace, *const slopes = scores + attention.matrix_bytes;
                const MatrixSizes& s = attention.sizes;
                for (std::size_t i = 0; i < attention.chunks.size(); ++i) {
                    const Chunk& chunk = attention.chunks[i];
                    const Products& products = *attention.products[i];
                    const auto run = [&](const std::unique_ptr<const Gemm>& gemm, const void* a, const void* b,
                                         void* d) {
                        if (gemm) gemm->run(queue, v.context.device, a, b, d, nullptr, workspace);
                    };
                    const std::int64_t row = attention.first_row(chunk), first_key = attention.first_key(chunk);
                    const void* const dy = attention.at(v.in[0], row, s.value_width);
                    const void* const query = attention.at(v.in[1], row, s.width);
                    const void* const key = attention.at(v.in[2], first_key, s.width);
                    run(products.scores, query, key, scores);
                    run(products.weights, dy, attention.at(v.in[3], first_key, s.value_width), slopes);
                    GradientsOfRow<Stored> gradients{attention.rows_of(chunk), reinterpret_cast<Stored*>(scores),
                                                     reinterpret_cast<Stored*>(slopes), v.input<T>(5),
                                                     element::dropout_factor<T>(attention.p)};
                    gradients.rows.mask = v.in[4];
                    gradients.rows.draws = v.input<AttentionDraws>(6);
                    launch_rows_in_memory(queue, "attention_gradients", chunk.matrix_rows(), s.keys, gradients);
                    const bool again = chunk.first_row > 0;
                    run(products.query, slopes, key, attention.at(v.out[0], row, s.width));
                    run(again ? products.key_again : products.key, slopes, query,
                        attention.at(v.out[1], first_key, s.width));
                    run(again ? products.value_again : products.value, scores, dy,
                        attention.at(v.out[2], first_key, s.value_width));
                }
            },
            attention.workspace + 2 * attention.matrix_bytes);
    });
}

KernelPtr make_attention_dropout_mask(const AttentionDropoutMask& op, KernelRequest& request) {
    request.want_contiguous(0);
    request.out[0].strides = request.out[0].shape.contiguous_strides();
    return visit_float(op.name, request.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request,
                                [count = request.out[0].numel(), p = op.p](const Queue& queue, const KernelArgs& v) {
                                    launch(queue, "attention_dropout_mask", count,
                                           DropoutFactors<T>{v.input<AttentionDraws>(0), threshold_of(p),
                                                             element::dropout_factor<T>(p), v.output<T>(0)});
                                });
    });
}

}  // namespace

void add_attention_kernels(KernelTable& table) {
    table.add<AttentionForward<false>, make_attention_forward<false>>();
    table.add<AttentionForward<true>, make_attention_forward<true>>();
    table.add<AttentionBackward, make_attention_backward>();
    table.add<AttentionDropoutMask, make_attention_dropout_mask>();
    table.add_half_types<AttentionForward<false>, make_attention_forward<false>>();
    table.add_half_types<AttentionForward<true>, make_attention_forward<true>>();
    table.add_half_types<AttentionBackward, make_attention_backward>();
}

}  // namespace lockstep::cuda
