// Updates of optimizers: by a rule, or in the library's functions, between reading rows and storing ranges.
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/rows.h"
#include "lockstep/ops/internal/type_list.h"
#include "lockstep/ops/internal/update_operations.h"
#include "lockstep/ops/internal/update_rules.h"

namespace lockstep::cuda {

namespace {

Rows rows_of(const KernelArgs& v, int input, std::size_t row_bytes) { return {v.input<char>(input), row_bytes}; }

// ---- by a rule --------------------------------------------------------------------------------------------------

/// What all elements of a parameter need is computed once for it.
template <class T, class Rule>
struct MakeFactors {
    Rows rows;
    int first;
    typename Rule::template Factors<T>* factors;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const ParameterRow& row = rows[first + static_cast<int>(i)];
        const auto& options = reinterpret_cast<const RowWith<typename Rule::Options>&>(row).options;
        factors[i] = Rule::template factors<T>(options, row.updates);
    }
};

template <class T, class Rule>
struct UpdateElement {
    Rows rows;
    ArenaRange range;
    const StatusWord* agreed;
    const typename Rule::template Factors<T>* factors;
    const T* gradients;
    T* parameters;
    T* states[most_states];  ///< null where no group uses them

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        if (!is_good(agreed)) return;
        const int parameter = rows.at(range.begin + i, range);
        if (parameter < 0 || rows[parameter].trainable == 0) return;
        const auto& own = factors[parameter - range.first];
        constexpr unsigned count = Rule::states.size();
        const unsigned used = Rule::template used<T>(own);
        T state[most_states] = {};
        for (unsigned s = 0; s < count; ++s)
            if ((used >> s & 1u) != 0) state[s] = states[s][i];
        Rule::update(own, gradients[i], parameters[i], state);
        for (unsigned s = 0; s < count; ++s)
            if ((used >> s & 1u) != 0) states[s][i] = state[s];
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
                launch(queue, "update_factors", parameters, MakeFactors<T, Rule>{rows, range.first, factors});
                UpdateElement<T, Rule> element{rows, range, v.agreed, factors, v.input<T>(0), v.output<T>(0), {}};
                int next = 1;
                for (std::size_t s = 0; s < Rule::states.size(); ++s)
                    if ((given >> s & 1u) != 0) element.states[s] = v.output<T>(next++);
                launch(queue, Rule::name, range.elements(), element);
            },
            static_cast<std::size_t>(parameters) * sizeof(Factors));
    });
}

template <class... Rules>
void add_rules(KernelTable& table, const std::tuple<Rules...>*) {
    (table.add<FusedUpdate<Rules>, make_fused_update<Rules>>(), ...);
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

    LOCKSTEP_ELEMENT double value_of(const ParameterRow& row) const {
        const char* at = reinterpret_cast<const char*>(&row) + offset;
        if (number == RowNumber::real) return *reinterpret_cast<const double*>(at);
        if (number == RowNumber::flag) return *at != 0 ? 1 : 0;
        return static_cast<double>(row.updates + 1);
    }
    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const int parameter = scalar ? range.first : rows.at(range.begin + i, range);
        numbers[i] = parameter < 0 ? T(0) : static_cast<T>(value_of(rows[parameter]));
    }
};

template <class T>
struct StoreElement {
    Rows rows;
    ArenaRange range;
    const StatusWord* agreed;
    const T* values;
    T* out;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        if (!is_good(agreed)) return;
        const int parameter = rows.at(range.begin + i, range);
        if (parameter >= 0 && rows[parameter].trainable != 0) out[i] = values[i];
    }
};

// ---- rows -------------------------------------------------------------------------------------------------------

/// Byte by byte, but for the number of updates.
struct StoreRowByte {
    std::size_t row_bytes;
    const char* fresh;
    char* rows;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
        const std::size_t offset = static_cast<std::size_t>(i) % row_bytes;
        const bool kept = offset >= offsetof(ParameterRow, updates) &&
                          offset < offsetof(ParameterRow, updates) + sizeof(ParameterRow::updates);
        if (!kept) rows[i] = fresh[i];
    }
};

/// Numbers travel as kernel arguments, of which there are 4 KiB.
constexpr int parameters_per_launch = 256;

struct CountUpdate {
    int parameters[parameters_per_launch];
    const StatusWord* agreed;
    char* rows;
    std::size_t row_bytes;

    LOCKSTEP_ELEMENT void operator()(std::int64_t i) const {
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
            launch(queue, "store_range", op.range.elements(),
                   StoreElement<T>{rows_of(v, 0, op.row_bytes), op.range, v.agreed, v.input<T>(1), v.output<T>(0)});
        });
    });
}

KernelPtr make_store_rows(const StoreRows& op, KernelRequest& request) {
    return make_cuda_kernel(
        request, [row_bytes = op.row_bytes, bytes = request.in[0].numel()](const Queue& queue, const KernelArgs& v) {
            launch(queue, "store_rows", bytes, StoreRowByte{row_bytes, v.input<char>(0), v.output<char>(0)});
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
    table.add<ReadRows, make_read_rows>();
    table.add<StoreRange, make_store_range>();
    table.add<StoreRows, make_store_rows>();
    table.add<CountUpdates, make_count_updates>();
}

}  // namespace lockstep::cuda
