// Updates of optimizers: by a rule, or by functions of the library between reading rows and storing ranges.
#include "lockstep/ops/cuda/chunk.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/parameter_rows.h"
#include "lockstep/ops/cuda/reduce.h"
#include "lockstep/ops/cuda/unroll.h"
#include "lockstep/ops/internal/gradient_arithmetic.h"
#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/ops/internal/type_list.h"
#include "lockstep/ops/internal/update_rules.h"

namespace lockstep::cuda {

namespace {

Rows rows_of(const KernelArgs& v, int input, std::size_t row_bytes) { return {v.input<char>(input), row_bytes}; }

// ---- by a rule --------------------------------------------------------------------------------------------------

/// Values common to all elements of a parameter are computed once per parameter.
template <class T, class Rule>
struct MakeFactors {
    Rows rows;
    int first;
    const ParameterNorms* norms;  ///< null: a NormRule's factors for norms of 0
    typename Rule::template Factors<T>* factors;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const ParameterRow& row = rows[first + static_cast<int>(i)];
        const auto& options = reinterpret_cast<const RowWith<typename Rule::Options>&>(row).options;
        if constexpr (NormRule<Rule>)
            factors[i] = Rule::template factors<T>(options, row.updates, norms ? norms[first + i] : ParameterNorms());
        else
            factors[i] = Rule::template factors<T>(options, row.updates);
    }
};

template <class T, class Rule>
struct UpdateChunks {
    static constexpr int width = chunk_elements(sizeof(T));
    static constexpr int at_once = 2;  // chunks of each array whose loads are in flight
    static constexpr unsigned count = Rule::states.size();
    using Factors = typename Rule::template Factors<T>;
    using Chunks = ThreadChunks<width>;

    Rows rows;
    ArenaRange range;
    const StatusWord* agreed;
    const Factors* factors;
    const T* gradients;
    T* parameters;
    T* states[max_states];  ///< null if no group uses them
    bool aligned;           ///< chunks may be loaded at once

    LOCKSTEP_HD_INLINE void operator()(std::int64_t thread) const {
        if (!is_good(agreed)) return;
        const std::int64_t first = Chunks::first(thread), end = range.end - range.begin;
        if (first >= end) return;
        const int parameter = rows.at(range.begin + first, range);
        if (has_all(parameter, first, Chunks::reach)) {
            if (rows[parameter].trainable == 0) return;
            const Factors own = factors[parameter - range.first];  // in registers: stores might change the array
            LOCKSTEP_NO_UNROLL
            for (int c = 0; c < Chunks::count; c += at_once) update_chunks<at_once>(own, first + c * Chunks::step);
            return;
        }
        LOCKSTEP_NO_UNROLL
        for (int c = 0; c < Chunks::count; ++c) update_any_chunk(first + c * Chunks::step, end);
    }

private:
    /// Whether a parameter contains the elements [first, first + length), and they can be accessed in chunks.
    LOCKSTEP_HD_INLINE bool has_all(int parameter, std::int64_t first, int length) const {
        const std::int64_t last = range.begin + first + length;
        return aligned && parameter >= 0 && last <= range.end && last <= rows[parameter].end;
    }
    LOCKSTEP_HD_INLINE void update_any_chunk(std::int64_t first, std::int64_t end) const {
        if (first >= end) return;
        const int parameter = rows.at(range.begin + first, range);
        if (has_all(parameter, first, width)) {
            if (rows[parameter].trainable != 0) update_chunks<1>(factors[parameter - range.first], first);
            return;
        }
        LOCKSTEP_NO_UNROLL
        for (std::int64_t e = first; e < end && e < first + width; ++e) update_element(e);
    }
    template <int chunks>
    LOCKSTEP_HD_INLINE void update_chunks(const Factors& own, std::int64_t first) const {
        const unsigned used = Rule::template used<T>(own);
        T gradient[chunks][width], parameter[chunks][width], state[max_states][chunks][width] = {};
        LOCKSTEP_UNROLL
        for (int c = 0; c < chunks; ++c) {
            load_chunk(gradients + first + c * Chunks::step, gradient[c]);
            load_chunk(parameters + first + c * Chunks::step, parameter[c]);
            LOCKSTEP_UNROLL
            for (unsigned s = 0; s < count; ++s)
                if ((used >> s & 1u) != 0) load_chunk(states[s] + first + c * Chunks::step, state[s][c]);
        }
        LOCKSTEP_UNROLL
        for (int c = 0; c < chunks; ++c) {
            LOCKSTEP_UNROLL
            for (int k = 0; k < width; ++k) {
                T each[max_states];
                LOCKSTEP_UNROLL
                for (unsigned s = 0; s < max_states; ++s) each[s] = state[s][c][k];
                Rule::update(own, gradient[c][k], parameter[c][k], each);
                LOCKSTEP_UNROLL
                for (unsigned s = 0; s < max_states; ++s) state[s][c][k] = each[s];
            }
            store_chunk(parameter[c], parameters + first + c * Chunks::step);
            LOCKSTEP_UNROLL
            for (unsigned s = 0; s < count; ++s)
                if ((used >> s & 1u) != 0) store_chunk(state[s][c], states[s] + first + c * Chunks::step);
        }
    }
    LOCKSTEP_HD_INLINE void update_element(std::int64_t e) const {
        const int parameter = rows.at(range.begin + e, range);
        if (parameter < 0 || rows[parameter].trainable == 0) return;
        const Factors& own = factors[parameter - range.first];
        const unsigned used = Rule::template used<T>(own);
        T state[max_states] = {};
        LOCKSTEP_UNROLL
        for (unsigned s = 0; s < count; ++s)
            if ((used >> s & 1u) != 0) state[s] = states[s][e];
        Rule::update(own, gradients[e], parameters[e], state);
        LOCKSTEP_UNROLL
        for (unsigned s = 0; s < count; ++s)
            if ((used >> s & 1u) != 0) states[s][e] = state[s];
    }
};

template <class Rule>
KernelPtr make_fused_update(const FusedUpdate<Rule>& op, KernelRequest& request) {
    request.want_all_contiguous();
    return visit_float(op.name, request.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        using Factors = typename Rule::template Factors<T>;
        const auto parameters = static_cast<std::int64_t>(op.range.last - op.range.first);
        return make_cuda_kernel(
            request,
            [range = op.range, given = op.states, parameters](const Queue& queue, const KernelArgs& v) {
                const Rows rows = rows_of(v, 1, sizeof(RowWith<typename Rule::Options>));
                auto* factors = static_cast<Factors*>(v.scratch);
                const ParameterNorms* norms = nullptr;
                if constexpr (NormRule<Rule>) norms = v.input<ParameterNorms>(2);
                launch(queue, "update_factors", parameters, MakeFactors<T, Rule>{rows, range.first, norms, factors});
                using Update = UpdateChunks<T, Rule>;
                Update update{rows, range, v.agreed, factors, v.input<T>(0), v.output<T>(0), {}, false};
                update.aligned = is_aligned(v.in[0], chunk_bytes) && is_aligned(v.out[0], chunk_bytes);
                int next = 1;
                for (std::size_t s = 0; s < Rule::states.size(); ++s) {
                    if ((given >> s & 1u) == 0) continue;
                    update.states[s] = v.output<T>(next++);
                    update.aligned = update.aligned && is_aligned(update.states[s], chunk_bytes);
                }
                launch(queue, Rule::name, Update::Chunks::threads(range.elements()), update);
            },
            static_cast<std::size_t>(parameters) * sizeof(Factors));
    });
}

// ---- norms ------------------------------------------------------------------------------------------------------

/// A grain by as many threads as element::measure has sums, which are joined in the order of that function.
template <class T, class Rule>
struct MeasureUpdateGrain {
    static constexpr int lanes = element::measure_lanes;
    Rows rows;
    ArenaRange range;
    const typename Rule::template Factors<T>* factors;
    const T* gradients;
    const T* parameters;
    const T* states[max_states];  ///< null if no group uses them
    double* sums;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const std::int64_t g = i / lanes, begin = g * norm_grain;
        const int lane = static_cast<int>(i % lanes), parameter = rows.at(range.begin + begin, range);
        std::int64_t count = 0;
        if (parameter >= 0 && rows[parameter].trainable != 0) {
            const std::int64_t last = rows[parameter].end < range.end ? rows[parameter].end : range.end;
            count = last - range.begin - begin;
            if (count > norm_grain) count = norm_grain;
        }
#if defined(__CUDA_ARCH__)
        ParameterNorms own = sum_lane(parameter, begin, count, lane);
        const unsigned together = ((1u << lanes) - 1) << (threadIdx.x % 32 / lanes * lanes);
        for (int half = lanes / 2; half > 0; half /= 2) {
            own.parameter += __shfl_down_sync(together, own.parameter, half, lanes);
            own.direction += __shfl_down_sync(together, own.direction, half, lanes);
        }
        if (lane == 0) store(g, own);
#else
        if (lane != 0) return;
        ParameterNorms own[lanes];
        for (int k = 0; k < lanes; ++k) own[k] = sum_lane(parameter, begin, count, k);
        for (int half = lanes / 2; half > 0; half /= 2)
            for (int k = 0; k < half; ++k) {
                own[k].parameter += own[k + half].parameter;
                own[k].direction += own[k + half].direction;
            }
        store(g, own[0]);
#endif
    }

private:
    /// Sums of squares of elements `lane`, `lane` + lanes, ...
    LOCKSTEP_HD_INLINE ParameterNorms sum_lane(int parameter, std::int64_t begin, std::int64_t count, int lane) const {
        ParameterNorms sum;
        for (std::int64_t k = lane; k < count; k += lanes) {
            const auto& own = factors[parameter - range.first];
            const unsigned used = Rule::template used<T>(own);
            T state[max_states] = {};
            LOCKSTEP_UNROLL
            for (unsigned s = 0; s < Rule::states.size(); ++s)
                if ((used >> s & 1u) != 0) state[s] = states[s][begin + k];
            const T value = parameters[begin + k];
            const auto direction = static_cast<double>(Rule::direction(own, gradients[begin + k], value, state));
            sum.parameter += static_cast<double>(value) * static_cast<double>(value);
            sum.direction += direction * direction;
        }
        return sum;
    }
    LOCKSTEP_HD_INLINE void store(std::int64_t g, const ParameterNorms& own) const {
        sums[2 * g] = own.parameter;
        sums[2 * g + 1] = own.direction;
    }
};

template <class Rule>
KernelPtr make_measure_update(const MeasureUpdate<Rule>& op, KernelRequest& request) {
    request.want_all_contiguous();
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        using Factors = typename Rule::template Factors<T>;
        const auto parameters = static_cast<std::int64_t>(op.range.last - op.range.first);
        return make_cuda_kernel(
            request,
            [range = op.range, given = op.states, parameters](const Queue& queue, const KernelArgs& v) {
                const Rows rows = rows_of(v, 2, sizeof(RowWith<typename Rule::Options>));
                auto* factors = static_cast<Factors*>(v.scratch);
                launch(queue, "update_factors", parameters, MakeFactors<T, Rule>{rows, range.first, nullptr, factors});
                MeasureUpdateGrain<T, Rule> grain{
                    rows, range, factors, v.input<T>(0), v.input<T>(1), {}, v.output<double>(0)};
                int next = 3;
                for (std::size_t s = 0; s < Rule::states.size(); ++s)
                    if ((given >> s & 1u) != 0) grain.states[s] = v.input<T>(next++);
                launch(queue, "measure_update", ceil_div(range.elements(), norm_grain) * grain.lanes, grain);
            },
            static_cast<std::size_t>(parameters) * sizeof(Factors));
    });
}

/// Two norms for each parameter of a range, from the sums of its grains.
struct JoinNorms {
    using Plans = NoColumns;
    using Value = double;
    Rows rows;
    ArenaRange range;
    const double* sums;
    double* norms;

    LOCKSTEP_HD_INLINE Value zero() const { return 0; }
    LOCKSTEP_HD_INLINE void add_all(Value& all, std::int64_t output, std::int64_t first, std::int64_t end,
                                    int step) const {
        const ParameterRow& row = rows[range.first + static_cast<int>(output / 2)];
        const std::int64_t grains = (row.end - row.begin + norm_grain - 1) / norm_grain;
        const double* own = sums + 2 * ((row.begin - range.begin) / norm_grain) + output % 2;
        for (std::int64_t k = first; k < end && k < grains; k += step) all += own[2 * k];
    }
    LOCKSTEP_HD_INLINE void join(Value& all, const Value& other) const { all += other; }
    LOCKSTEP_HD_INLINE void finish(std::int64_t output, const Value& all) const {
        norms[2 * range.first + output] = std::sqrt(all);
    }
};

KernelPtr make_combine_norms(const CombineNorms& op, KernelRequest& request) {
    // No parameter has more grains than the range.
    const ReducePlan plan =
        ReducePlan::make(2 * (op.range.last - op.range.first), ceil_div(op.range.elements(), norm_grain), false);
    return make_cuda_kernel(
        request,
        [plan, op](const Queue& queue, const KernelArgs& v) {
            const JoinNorms join{rows_of(v, 1, op.row_bytes), op.range, v.input<double>(0), v.output<double>(0)};
            reduce(queue, "parameter_norms", plan, join, v.scratch);
        },
        plan.scratch_bytes<JoinNorms>());
}

template <class... Rules>
void add_rules(KernelTable& table, const std::tuple<Rules...>*) {
    const auto add = [&]<class Rule>(std::type_identity<Rule>) {
        table.add<FusedUpdate<Rule>, make_fused_update<Rule>>();
        if constexpr (NormRule<Rule>) table.add<MeasureUpdate<Rule>, make_measure_update<Rule>>();
    };
    (add(std::type_identity<Rules>()), ...);
}

// ---- in the library's functions ---------------------------------------------------------------------------------

template <class T>
struct ReadRow {
    Rows rows;
    ArenaRange range;
    std::size_t offset;
    RowNumber number;
    bool scalar;
    T* numbers;

    LOCKSTEP_HD_INLINE double value_of(const ParameterRow& row) const {
        const char* at = reinterpret_cast<const char*>(&row) + offset;
        if (number == RowNumber::real) return *reinterpret_cast<const double*>(at);
        if (number == RowNumber::flag) return *at != 0 ? 1 : 0;
        return static_cast<double>(row.updates + 1);
    }
    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const int parameter = scalar ? range.first : rows.at(range.begin + i, range);
        numbers[i] = parameter < 0 ? T(0) : static_cast<T>(value_of(rows[parameter]));
    }
};

template <class T>
struct StoreChunk {
    static constexpr int width = chunk_elements(sizeof(T));
    Rows rows;
    ArenaRange range;
    const StatusWord* agreed;
    const T* values;
    T* out;
    bool aligned;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        if (!is_good(agreed)) return;
        const std::int64_t first = i * width, end = range.end - range.begin;
        const int parameter = rows.at(range.begin + first, range);
        if (aligned && parameter >= 0 && first + width <= end && range.begin + first + width <= rows[parameter].end) {
            if (rows[parameter].trainable == 0) return;
            T chunk[width];
            load_chunk(values + first, chunk);
            return store_chunk(chunk, out + first);
        }
        LOCKSTEP_NO_UNROLL
        for (std::int64_t e = first; e < end && e < first + width; ++e) {
            const int own = rows.at(range.begin + e, range);
            if (own >= 0 && rows[own].trainable != 0) out[e] = values[e];
        }
    }
};

// ---- rows -------------------------------------------------------------------------------------------------------

/// Copies words of 8 bytes, except for the number of updates.
struct StoreRowWord {
    static constexpr std::size_t word = sizeof(std::uint64_t);
    static_assert(sizeof(ParameterRow::updates) == word && offsetof(ParameterRow, updates) % word == 0);

    std::size_t row_words;
    const std::uint64_t* fresh;
    std::uint64_t* rows;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        if (static_cast<std::size_t>(i) % row_words != offsetof(ParameterRow, updates) / word) rows[i] = fresh[i];
    }
};

/// Parameter numbers are passed as kernel arguments, which are limited to 4 KiB.
constexpr int parameters_per_launch = 256;

struct CountUpdate {
    int parameters[parameters_per_launch];
    const StatusWord* agreed;
    char* rows;
    std::size_t row_bytes;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        auto& row = *reinterpret_cast<ParameterRow*>(rows + row_bytes * static_cast<std::size_t>(parameters[i]));
        if (is_good(agreed) && row.counts != 0) ++row.updates;
    }
};

KernelPtr make_read_rows(const ReadRows& op, KernelRequest& request) {
    return visit_float(op.name, request.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const bool scalar = request.out[0].shape.empty();
        return make_cuda_kernel(request, [op, scalar](const Queue& queue, const KernelArgs& v) {
            launch(queue, "read_rows", scalar ? 1 : op.range.elements(),
                   ReadRow<T>{rows_of(v, 0, op.row_bytes), op.range, op.offset, op.number, scalar, v.output<T>(0)});
        });
    });
}

KernelPtr make_store_range(const StoreRange& op, KernelRequest& request) {
    request.want_all_contiguous();
    return visit_float(op.name, request.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [op](const Queue& queue, const KernelArgs& v) {
            const bool aligned = is_aligned(v.in[1], chunk_bytes) && is_aligned(v.out[0], chunk_bytes);
            launch(
                queue, "store_range", ceil_div(op.range.elements(), StoreChunk<T>::width),
                StoreChunk<T>{rows_of(v, 0, op.row_bytes), op.range, v.agreed, v.input<T>(1), v.output<T>(0), aligned});
        });
    });
}

KernelPtr make_store_rows(const StoreRows& op, KernelRequest& request) {
    return make_cuda_kernel(
        request, [row_bytes = op.row_bytes, bytes = request.in[0].numel()](const Queue& queue, const KernelArgs& v) {
            constexpr std::size_t word = StoreRowWord::word;  // rows are structs with numbers of 8 bytes
            launch(queue, "store_rows", bytes / static_cast<std::int64_t>(word),
                   StoreRowWord{row_bytes / word, v.input<std::uint64_t>(0), v.output<std::uint64_t>(0)});
        });
}

KernelPtr make_count_updates(const CountUpdates& op, KernelRequest& request) {
    return make_cuda_kernel(request, [op](const Queue& queue, const KernelArgs& v) {
        for (std::size_t first = 0; first < op.parameters.size(); first += parameters_per_launch) {
            CountUpdate count{};
            const std::size_t number = std::min<std::size_t>(parameters_per_launch, op.parameters.size() - first);
            for (std::size_t i = 0; i < number; ++i) count.parameters[i] = op.parameters[first + i];
            count.agreed = v.agreed;
            count.rows = v.output<char>(0);
            count.row_bytes = op.row_bytes;
            launch(queue, "count_updates", static_cast<std::int64_t>(number), count);
        }
    });
}

}  // namespace

void add_optimizer_kernels(KernelTable& table) {
    add_rules(table, list_of<UpdateRules>);
    table.add<CombineNorms, make_combine_norms>();
    table.add<ReadRows, make_read_rows>();
    table.add<StoreRange, make_store_range>();
    table.add<StoreRows, make_store_rows>();
    table.add<CountUpdates, make_count_updates>();
}

}  // namespace lockstep::cuda
