// Attention by blocks of queries. A thread holds the scores of one block with all keys; results do not depend on the
// number of threads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/ops/cpu/gemm.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/onednn.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/attention_operations.h"
#include "lockstep/ops/internal/random_arithmetic.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {
namespace {

constexpr std::int64_t query_block = 64;

/// Steps between the elements of an operand with four dimensions; 0 along sizes of 1 of a mask.
struct Steps {
    std::int64_t batch = 0, head = 0, row = 0, column = 0;

    static Steps of(const TensorMeta& meta) {
        return {meta.strides[0], meta.strides[1], meta.strides[2], meta.strides[3]};
    }
    static Steps of_mask(const TensorMeta& meta) {
        const auto step = [&](int dim) { return meta.shape[dim] == 1 ? 0 : meta.strides[dim]; };
        return {step(0), step(1), step(2), step(3)};
    }
    std::int64_t at(std::int64_t n, std::int64_t h, std::int64_t i) const { return n * batch + h * head + i * row; }
};

enum class MaskKind : std::uint8_t { none, boolean, numbers };

/// Sizes and options of one call.
struct Attention {
    std::int64_t batch, heads, groups, queries, keys, width, value_width;
    bool is_causal;
    double scale, p;
    Steps query, key, value, mask;
    MaskKind mask_kind = MaskKind::none;

    std::int64_t heads_of_group() const { return heads / groups; }
    std::int64_t blocks() const { return ceil_div(queries, query_block); }
    /// Number of the head among all.
    std::int64_t head_number(std::int64_t n, std::int64_t h) const { return n * heads + h; }
    /// Keys to which the queries before `end` may attend.
    std::int64_t keys_before(std::int64_t end) const { return is_causal ? std::min(keys, end) : keys; }
    std::int64_t keys_of(std::int64_t query_number) const { return keys_before(query_number + 1); }
    /// Simple elements in the time of `products` products of every query with every key.
    std::int64_t cost(std::int64_t products) const {
        constexpr std::int64_t multiplications = 16, exponential = 2;  // in the time of a simple element
        const std::int64_t scores = batch * heads * queries * keys / (is_causal ? 2 : 1);
        return scores * (products * (width + value_width) / (2 * multiplications) + exponential);
    }
};

void want_matrices(KernelRequest& request, std::size_t input) {
    const TensorMeta& meta = request.in[input];
    if (meta.opaque != nullptr || !is_gemm_operand(meta.shape[2], meta.shape[3], meta.strides[2], meta.strides[3]))
        request.want_contiguous(input);
}

/// The operands from `query` on, and the mask after them.
Attention attention_of(KernelRequest& request, std::size_t query, bool is_causal, double scale, double p) {
    for (std::size_t i = query; i < query + 3; ++i) want_matrices(request, i);
    const Shape &q = request.in[query].shape, &k = request.in[query + 1].shape, &v = request.in[query + 2].shape;
    Attention made{q[0], q[1], k[1], q[2], k[2], q[3], v[3], is_causal, scale, p, {}, {}, {}, {}};
    made.query = Steps::of(request.in[query]);
    made.key = Steps::of(request.in[query + 1]);
    made.value = Steps::of(request.in[query + 2]);
    if (request.has_in(query + 3)) {
        if (request.in[query + 3].opaque != nullptr) request.want_contiguous(query + 3);
        const TensorMeta& mask = request.in[query + 3];
        made.mask = Steps::of_mask(mask);
        made.mask_kind = mask.dtype == DType::boolean ? MaskKind::boolean : MaskKind::numbers;
    }
    return made;
}

/// Operands of a call.
template <class T>
struct Operands {
    const Attention& shape;
    const T *query, *key, *value;
    const void* mask;
    const AttentionDraws* draws;

    Operands(const Attention& attention, const KernelArgs& call, int first, const AttentionDraws* drawn)
        : shape(attention),
          query(call.input<T>(first)),
          key(call.input<T>(first + 1)),
          value(call.input<T>(first + 2)),
          mask(call.in[first + 3]),
          draws(drawn) {}

    /// (S, E), its transpose and (S, Ev) of a group.
    Matrix<T> keys(std::int64_t n, std::int64_t g) const {
        return {key + shape.key.at(n, g, 0), shape.key.row, shape.key.column};
    }
    Matrix<T> transposed_keys(std::int64_t n, std::int64_t g) const {
        return {key + shape.key.at(n, g, 0), shape.key.column, shape.key.row};
    }
    Matrix<T> values(std::int64_t n, std::int64_t g) const {
        return {value + shape.value.at(n, g, 0), shape.value.row, shape.value.column};
    }
    Matrix<T> transposed_values(std::int64_t n, std::int64_t g) const {
        return {value + shape.value.at(n, g, 0), shape.value.column, shape.value.row};
    }

    /// The first `count` scores of a query, with the mask.
    void apply_mask(std::int64_t n, std::int64_t h, std::int64_t i, T* scores, std::int64_t count) const {
        constexpr T none = -std::numeric_limits<T>::infinity();
        const std::int64_t first = shape.mask.at(n, h, i), step = shape.mask.column;
        if (shape.mask_kind == MaskKind::boolean) {
            const auto* const row = static_cast<const std::uint8_t*>(mask) + first;
            for (std::int64_t j = 0; j < count; ++j) scores[j] = row[j * step] != 0 ? scores[j] : none;
        } else if (shape.mask_kind == MaskKind::numbers) {
            const T* const row = static_cast<const T*>(mask) + first;
            for (std::int64_t j = 0; j < count; ++j) {
                const T bias = row[j * step], sum = scores[j] + bias;
                scores[j] = bias == none ? none : sum;
            }
        }
    }

    /// Writes factors of the weights [begin, end) of a query: 0 or 1 / (1 - p).
    void draw(std::int64_t n, std::int64_t h, std::int64_t i, std::int64_t begin, std::int64_t end, T* factors) const {
        const auto number = static_cast<std::uint64_t>((shape.head_number(n, h) * shape.queries + i) * shape.keys);
        const Draws numbers{draws->state, static_cast<std::uint32_t>(draws->ordinal), draws->first + number};
        loops<T>().one_of_two(factors, begin, end, numbers, static_cast<float>(shape.p), T(0),
                              element::dropout_factor<T>(shape.p));
    }
};

/// A block of queries of one head.
struct QueryBlock {
    std::int64_t n, h, first, count;
    std::int64_t keys;  ///< to which one of them may attend
};

QueryBlock block_of(const Attention& shape, std::int64_t n, std::int64_t h, std::int64_t number) {
    const std::int64_t first = number * query_block, count = std::min(query_block, shape.queries - first);
    return {n, h, first, count, shape.keys_before(first + count)};
}

/// query * scale (count, E), row-major.
template <class T>
void scale_queries(const Operands<T>& in, const QueryBlock& block, T* scaled) {
    const Attention& shape = in.shape;
    for (std::int64_t r = 0; r < block.count; ++r) {
        const T* const row = in.query + shape.query.at(block.n, block.h, block.first + r);
        T* const to = scaled + r * shape.width;
        if (shape.query.column == 1) {
            loops<T>().affine(row, to, shape.width, static_cast<T>(shape.scale), T(-0.0));
        } else {
            for (std::int64_t e = 0; e < shape.width; ++e)
                to[e] = row[e * shape.query.column] * static_cast<T>(shape.scale);
        }
    }
}

/// The masked scores of a block (count, keys), from its scaled queries.
template <class T>
void score(const Operands<T>& in, const QueryBlock& block, const T* scaled, T* scores) {
    const Attention& shape = in.shape;
    gemm(block.count, block.keys, shape.width, Matrix<T>{scaled, shape.width, 1},
         in.transposed_keys(block.n, block.h / shape.heads_of_group()), scores);
    for (std::int64_t r = 0; r < block.count && shape.mask_kind != MaskKind::none; ++r)
        in.apply_mask(block.n, block.h, block.first + r, scores + r * block.keys, block.keys);
}

/// Calls work(key, factor of its weight) for the first `count` keys of query r of a block.
template <class T, class Work>
void for_factors(const Operands<T>& in, const QueryBlock& block, std::int64_t r, std::int64_t count, const Work& work) {
    T factors[512];
    for (std::int64_t j = 0; j < count; j += std::ssize(factors)) {
        const std::int64_t end = std::min<std::int64_t>(j + std::ssize(factors), count);
        in.draw(block.n, block.h, block.first + r, j, end, factors);
        for (std::int64_t k = j; k < end; ++k) work(k, factors[k - j]);
    }
}

/// y of a block (count, Ev); scratch: (block, E) and (block, S).
template <class T>
void attend(const Operands<T>& in, const QueryBlock& block, T* y, T* statistics, T* scratch) {
    const Attention& shape = in.shape;
    const Loops<T>& loop = loops<T>();
    T *const scaled = scratch, *const weights = scaled + query_block * shape.width;
    T inverse[query_block];
    scale_queries(in, block, scaled);
    score(in, block, scaled, weights);
    const std::int64_t row_number = shape.head_number(block.n, block.h) * shape.queries + block.first;
    for (std::int64_t r = 0; r < block.count; ++r) {
        T* const row = weights + r * block.keys;
        const std::int64_t count = shape.keys_of(block.first + r);
        T largest = count > 0 ? loop.largest(row, count) : T(0);
        if (largest == -std::numeric_limits<T>::infinity()) largest = 0;
        loop.exp_below(row, largest, row, count);
        const double sum = loop.sum(row, count);
        inverse[r] = sum == 0 ? T(0) : static_cast<T>(1 / sum);
        std::fill(row + count, row + block.keys, T(0));
        if (statistics != nullptr) {
            statistics[row_number + r] = largest;
            statistics[shape.batch * shape.heads * shape.queries + row_number + r] = inverse[r];
        }
        if (in.draws != nullptr) for_factors(in, block, r, count, [&](std::int64_t j, T factor) { row[j] *= factor; });
    }
    gemm(block.count, shape.value_width, block.keys, Matrix<T>{weights, block.keys, 1},
         in.values(block.n, block.h / shape.heads_of_group()), y);
    for (std::int64_t r = 0; r < block.count; ++r) {
        T* const row = y + r * shape.value_width;
        loop.affine(row, row, shape.value_width, inverse[r], T(-0.0));
    }
}

/// Elements of scratch memory of a thread.
std::int64_t forward_scratch(const Attention& shape) { return query_block * (shape.width + shape.keys); }
std::int64_t backward_scratch(const Attention& shape, bool drops) {
    return query_block * (shape.width + shape.value_width + (drops ? 3 : 2) * shape.keys);
}

/// Calls work(thread, item) for every item, in parallel; matrix products inside of it use one thread.
template <class Work>
void for_items(int threads, std::int64_t items, const Work& work) {
    const std::int64_t part = ceil_div(items, threads);
    for_parts(threads, items, 1, [&](std::int64_t begin, std::int64_t end) {
        const onednn::ThreadScope one(1);
        for (std::int64_t i = begin; i < end; ++i) work(begin / part, i);
    });
}

template <bool drops>
std::unique_ptr<Kernel> make_attention_forward(const AttentionForward<drops>& operation, KernelRequest& request) {
    for (std::size_t i = 0; i < request.out.size(); ++i)
        if (request.has_out(i)) require_contiguous_output(operation, request, i);
    const double p = drops ? operation.p : 0;
    const Attention shape = attention_of(request, 0, operation.is_causal, operation.scale, p);
    const int threads = worthwhile_threads(request.threads, shape.cost(2));
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [=](const KernelArgs& call) {
                AttentionDraws draws{};
                if constexpr (drops) {
                    draws = {*call.step, call.ordinal,
                             element::first_draw(operation.by, call.first_row, operation.row_size, call.shard)};
                    if (call.out[2] != nullptr) *call.output<AttentionDraws>(2) = draws;
                }
                const Operands<T> in(shape, call, 0, drops ? &draws : nullptr);
                const std::int64_t blocks = shape.blocks();
                for_items(threads, shape.batch * shape.heads * blocks, [&](std::int64_t thread, std::int64_t item) {
                    // Alternately from the front and from the back: causal blocks have different numbers of keys.
                    const std::int64_t head = item / blocks, i = item % blocks;
                    const std::int64_t number = i % 2 == 0 ? i / 2 : blocks - 1 - i / 2;
                    const QueryBlock block = block_of(shape, head / shape.heads, head % shape.heads, number);
                    attend(in, block, call.output<T>(0) + (head * shape.queries + block.first) * shape.value_width,
                           call.output<T>(1), static_cast<T*>(call.scratch) + thread * forward_scratch(shape));
                });
            },
            static_cast<std::size_t>(threads * forward_scratch(shape)) * sizeof(T));
    });
}

/// Inputs and outputs of the gradient of one block.
template <class T>
struct Gradients {
    const T* dy;
    Steps dy_steps;
    const T* statistics;
    T *query, *key, *value;  ///< (N, H, L, E); of the group, which is added to: (S, E) and (S, Ev); or null
};

/// The gradients of a block; scratch: (block, E), (block, Ev) and (block, S) twice, or three times with dropout.
template <class T>
void differentiate(const Operands<T>& in, const QueryBlock& block, const Gradients<T>& to, T* scratch) {
    const Attention& shape = in.shape;
    const Loops<T>& loop = loops<T>();
    const std::int64_t n = block.n, h = block.h, group = h / shape.heads_of_group(), keys = block.keys;
    T *const scaled = scratch, *const upstream = scaled + query_block * shape.width;
    T *const powers = upstream + query_block * shape.value_width, *const slopes = powers + query_block * shape.keys;
    T* const dropped = in.draws != nullptr ? slopes + query_block * shape.keys : powers;
    const std::int64_t row_number = shape.head_number(n, h) * shape.queries + block.first;
    const T *const largest = to.statistics + row_number, *const inverse =
                                                             largest + shape.batch * shape.heads * shape.queries;
    scale_queries(in, block, scaled);
    score(in, block, scaled, powers);
    // With the powers p, whose sum is 1 / inverse, and dy * inverse: weights * (dy v^T - sum(weights * dy v^T)).
    for (std::int64_t r = 0; r < block.count; ++r) {
        const T* const row = to.dy + to.dy_steps.at(n, h, block.first + r);
        for (std::int64_t e = 0; e < shape.value_width; ++e)
            upstream[r * shape.value_width + e] = row[e * to.dy_steps.column] * inverse[r];
    }
    gemm(block.count, keys, shape.value_width, Matrix<T>{upstream, shape.value_width, 1},
         in.transposed_values(n, group), slopes);
    for (std::int64_t r = 0; r < block.count; ++r) {
        T *const power = powers + r * keys, *const slope = slopes + r * keys, *const kept = dropped + r * keys;
        const std::int64_t count = shape.keys_of(block.first + r);
        loop.exp_below(power, largest[r], power, count);
        if (in.draws != nullptr) {
            for_factors(in, block, r, count, [&](std::int64_t j, T factor) {
                kept[j] = power[j] * factor;
                slope[j] *= factor;
            });
            std::fill(kept + count, kept + keys, T(0));
        }
        const T total = inverse[r] * static_cast<T>(loop.product_sum(power, slope, count));
        loop.softmax_gradient(slope, power, total, slope, count);
        std::fill(power + count, power + keys, T(0));
        std::fill(slope + count, slope + keys, T(0));
    }
    if (to.value != nullptr)
        gemm(keys, shape.value_width, block.count, Matrix<T>{dropped, 1, keys},
             Matrix<T>{upstream, shape.value_width, 1}, to.value, true);
    if (to.key != nullptr)
        gemm(keys, shape.width, block.count, Matrix<T>{slopes, 1, keys}, Matrix<T>{scaled, shape.width, 1}, to.key,
             true);
    if (to.query == nullptr) return;
    T* const dquery = to.query + row_number * shape.width;
    gemm(block.count, shape.width, keys, Matrix<T>{slopes, keys, 1}, in.keys(n, group), dquery);
    loop.affine(dquery, dquery, block.count * shape.width, static_cast<T>(shape.scale), T(-0.0));
}

std::unique_ptr<Kernel> make_attention_backward(const AttentionBackward& operation, KernelRequest& request) {
    for (std::size_t i = 0; i < request.out.size(); ++i)
        if (request.has_out(i)) require_contiguous_output(operation, request, i);
    const Attention shape = attention_of(request, 1, operation.is_causal, operation.scale, operation.p);
    if (request.in[0].opaque != nullptr) request.want_contiguous(0);
    request.want_contiguous(5);
    const Steps dy_steps = Steps::of(request.in[0]);
    const bool drops = request.has_in(6);
    // A group is the work of one thread, which adds up its gradients in order. Few groups are divided into parts by
    // their blocks; sums over these are added up in order afterwards.
    constexpr std::int64_t enough = 8;
    const std::int64_t groups = shape.batch * shape.groups, blocks = shape.heads_of_group() * shape.blocks();
    const std::int64_t parts = std::clamp<std::int64_t>(ceil_div(enough, std::max<std::int64_t>(groups, 1)), 1,
                                                        std::max<std::int64_t>(blocks, 1));
    const int threads = worthwhile_threads(request.threads, shape.cost(5));
    const std::int64_t key_size = shape.keys * shape.width, value_size = shape.keys * shape.value_width;
    const std::int64_t partial_sums = (parts - 1) * groups * (key_size + value_size);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [=](const KernelArgs& call) {
                const Operands<T> in(shape, call, 1, drops ? call.input<AttentionDraws>(6) : nullptr);
                T* const partial = static_cast<T*>(call.scratch) + threads * backward_scratch(shape, drops);
                // Sums over part 0 are made in the result.
                const auto sums = [&](int output, std::int64_t part, std::int64_t group, std::int64_t size) -> T* {
                    if (call.out[output] == nullptr) return nullptr;
                    if (part == 0) return call.output<T>(output) + group * size;
                    return partial + (output == 1 ? 0 : (parts - 1) * groups * key_size) +
                           ((part - 1) * groups + group) * size;
                };
                for_items(threads, groups * parts, [&](std::int64_t thread, std::int64_t item) {
                    const std::int64_t group = item / parts, part = item % parts;
                    const Gradients<T> to{call.input<T>(0),
                                          dy_steps,
                                          call.input<T>(5),
                                          call.output<T>(0),
                                          sums(1, part, group, key_size),
                                          sums(2, part, group, value_size)};
                    if (to.key != nullptr) std::fill_n(to.key, key_size, T(0));
                    if (to.value != nullptr) std::fill_n(to.value, value_size, T(0));
                    for (std::int64_t i = part; i < blocks; i += parts) {
                        const std::int64_t h = group % shape.groups * shape.heads_of_group() + i / shape.blocks();
                        differentiate(in, block_of(shape, group / shape.groups, h, i % shape.blocks()), to,
                                      static_cast<T*>(call.scratch) + thread * backward_scratch(shape, drops));
                    }
                });
                for (int output = 1; output <= 2 && parts > 1; ++output) {
                    const std::int64_t size = output == 1 ? key_size : value_size;
                    T* const total = sums(output, 0, 0, size);
                    if (total == nullptr) continue;
                    for_element_parts(threads, groups * size, [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t part = 1; part < parts; ++part)
                            binary_loops<T, functor::Add>()[0](total + begin, sums(output, part, 0, size) + begin,
                                                               total + begin, end - begin);
                    });
                }
            },
            static_cast<std::size_t>(threads * backward_scratch(shape, drops) + partial_sums) * sizeof(T));
    });
}

std::unique_ptr<Kernel> make_attention_dropout_mask(const AttentionDropoutMask& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [elements = request.out[0].numel(), p = operation.p, threads = request.threads](const KernelArgs& call) {
                const auto& drawn = *call.input<AttentionDraws>(0);
                const Draws draws{drawn.state, static_cast<std::uint32_t>(drawn.ordinal), drawn.first};
                for_element_parts(threads, elements, [&](std::int64_t begin, std::int64_t end) {
                    loops<T>().one_of_two(call.output<T>(0) + begin, begin, end, draws, static_cast<float>(p), T(0),
                                          element::dropout_factor<T>(p));
                });
            });
    });
}

}  // namespace

void add_attention_kernels(KernelTable& table) {
    table.add<AttentionForward<false>, make_attention_forward<false>>();
    table.add<AttentionForward<true>, make_attention_forward<true>>();
    table.add<AttentionBackward, make_attention_backward>();
    table.add<AttentionDropoutMask, make_attention_dropout_mask>();
}

}  // namespace lockstep::cpu
