// Sums over shards, and changes of the model's state.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/cpu/parameter_rows.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/ops/internal/update_rules.h"

namespace lockstep::cpu {
namespace {

class SumOverShardsKernel final : public Kernel {
public:
    explicit SumOverShardsKernel(const KernelRequest& request) {
        for (const TensorMeta& meta : request.out) tensors_.push_back({meta.dtype, meta.numel()});
    }
    void run(const KernelArgs& call) const override {
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            if (tensors_[i].dtype == DType::f32)
                sum<float>(call, i);
            else
                sum<double>(call, i);
        }
    }

private:
    struct Summand {
        DType dtype;
        std::int64_t elements;
    };

    template <class T>
    void sum(const KernelArgs& call, std::size_t i) const {
        const auto distance = static_cast<std::ptrdiff_t>(tensors_.size());
        for_element_parts(threads, tensors_[i].elements, [&](std::int64_t begin, std::int64_t end) {
            loops<T>().sum_over_shards(call.in + i, distance, call.shards, begin, end - begin,
                                       static_cast<T*>(call.out[i]));
        });
    }

    std::vector<Summand> tensors_;
};

std::unique_ptr<Kernel> make_sum_over_shards(const SumOverShards& operation, KernelRequest& request) {
    request.want_all_contiguous();
    for (std::size_t i = 0; i < request.out.size(); ++i) {
        require_contiguous_output(operation, request, i);
        const DType dtype = request.out[i].dtype;
        if (dtype != DType::f32 && dtype != DType::f64) unsupported_dtype(operation, dtype);
    }
    return std::make_unique<SumOverShardsKernel>(request);
}

// ---- updates ----------------------------------------------------------------------------------------------------

template <class Rule>
std::unique_ptr<Kernel> make_fused_update(const FusedUpdate<Rule>& operation, KernelRequest& request) {
    request.want_all_contiguous();
    for (std::size_t i = 0; i < request.out.size(); ++i) require_contiguous_output(operation, request, i);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [range = operation.range, given = operation.states, threads = request.threads](const KernelArgs& call) {
                if (call.agreed->code != 0) return;
                const auto loop = loops<T>().update[index_in<Rule, UpdateRules>()];
                constexpr std::size_t row_bytes = sizeof(RowWith<typename Rule::Options>);
                for_parameters(range, call.in[1], row_bytes,
                               [&](const ParameterRow& row, std::int64_t first, std::int64_t count) {
                                   if (row.trainable == 0) return;
                                   ParameterNorms norms;
                                   if constexpr (NormRule<Rule>)
                                       norms = call.input<ParameterNorms>(2)[number_of(row, call.in[1], row_bytes)];
                                   for_element_parts(threads, count, [&](std::int64_t begin, std::int64_t end) {
                                       T* states[max_states] = {};
                                       int next = 1;
                                       for (std::size_t s = 0; s < Rule::states.size(); ++s)
                                           if ((given >> s & 1u) != 0)
                                               states[s] = call.output<T>(next++) + first + begin;
                                       loop(row, norms, call.input<T>(0) + first + begin,
                                            call.output<T>(0) + first + begin, states, end - begin);
                                   });
                               });
            });
    });
}

template <class Rule>
std::unique_ptr<Kernel> make_measure_update(const MeasureUpdate<Rule>& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [range = operation.range, given = operation.states, threads = request.threads](const KernelArgs& call) {
                const auto loop = loops<T>().measure_update[index_in<Rule, UpdateRules>()];
                auto* sums = call.output<double>(0);
                std::fill_n(sums, 2 * ceil_div(range.elements(), norm_grain), 0.0);
                for_parameters(range, call.in[2], sizeof(RowWith<typename Rule::Options>),
                               [&](const ParameterRow& row, std::int64_t first, std::int64_t count) {
                                   if (row.trainable == 0) return;
                                   for_element_parts(threads, count, [&](std::int64_t begin, std::int64_t end) {
                                       const std::int64_t at = first + begin;
                                       T* states[max_states] = {};
                                       int next = 3;
                                       for (std::size_t s = 0; s < Rule::states.size(); ++s)
                                           if ((given >> s & 1u) != 0)
                                               states[s] = const_cast<T*>(call.input<T>(next++)) + at;
                                       loop(row, call.input<T>(0) + at, call.input<T>(1) + at, states, end - begin,
                                            sums + 2 * (at / norm_grain));
                                   });
                               });
            });
    });
}

std::unique_ptr<Kernel> make_combine_norms(const CombineNorms& operation, KernelRequest&) {
    return make_kernel([operation](const KernelArgs& call) {
        for_parameters(operation.range, call.in[1], operation.row_bytes,
                       [&](const ParameterRow& row, std::int64_t first, std::int64_t count) {
                           const double* sums = call.input<double>(0) + 2 * (first / norm_grain);
                           double of_parameter = 0, of_direction = 0;
                           for (std::int64_t i = 0; i < ceil_div(count, norm_grain); ++i) {
                               of_parameter += sums[2 * i];
                               of_direction += sums[2 * i + 1];
                           }
                           call.output<ParameterNorms>(0)[number_of(row, call.in[1], operation.row_bytes)] = {
                               std::sqrt(of_parameter), std::sqrt(of_direction)};
                       });
    });
}

double number_of(const ParameterRow& row, const ReadRows& operation) {
    const char* at = reinterpret_cast<const char*>(&row) + operation.offset;
    switch (operation.number) {
        case RowNumber::real: return *reinterpret_cast<const double*>(at);
        case RowNumber::flag: return *at != 0 ? 1 : 0;
        case RowNumber::updates: break;
    }
    return static_cast<double>(row.updates + 1);
}

std::unique_ptr<Kernel> make_read_rows(const ReadRows& operation, KernelRequest& request) {
    return for_floating(operation, request.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        const bool scalar = request.out[0].shape.empty();
        return make_kernel([operation, scalar](const KernelArgs& call) {
            T* numbers = call.output<T>(0);
            if (!scalar) std::fill_n(numbers, operation.range.elements(), T(0));
            for_parameters(operation.range, call.in[0], operation.row_bytes,
                           [&](const ParameterRow& row, std::int64_t first, std::int64_t count) {
                               const auto value = static_cast<T>(number_of(row, operation));
                               if (scalar)
                                   *numbers = value;
                               else
                                   std::fill_n(numbers + first, count, value);
                           });
        });
    });
}

std::unique_ptr<Kernel> make_store_range(const StoreRange& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.out[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([operation](const KernelArgs& call) {
            if (call.agreed->code != 0) return;
            for_parameters(operation.range, call.in[0], operation.row_bytes,
                           [&](const ParameterRow& row, std::int64_t first, std::int64_t count) {
                               if (row.trainable != 0)
                                   std::copy_n(call.input<T>(1) + first, count, call.output<T>(0) + first);
                           });
        });
    });
}

std::unique_ptr<Kernel> make_store_rows(const StoreRows& operation, KernelRequest& request) {
    const std::size_t row_bytes = operation.row_bytes;
    const auto count = static_cast<std::size_t>(request.in[0].numel()) / row_bytes;
    return make_kernel([count, row_bytes](const KernelArgs& call) {
        for (std::size_t i = 0; i < count; ++i) {
            ParameterRow& row = row_at(call.out[0], row_bytes, static_cast<int>(i));
            const std::int64_t updates = row.updates;
            std::memcpy(&row, &row_at(static_cast<const void*>(call.in[0]), row_bytes, static_cast<int>(i)), row_bytes);
            row.updates = updates;
        }
    });
}

std::unique_ptr<Kernel> make_count_updates(const CountUpdates& operation, KernelRequest&) {
    return make_kernel([operation](const KernelArgs& call) {
        if (call.agreed->code != 0) return;
        for (const int parameter : operation.parameters) {
            ParameterRow& row = row_at(call.out[0], operation.row_bytes, parameter);
            if (row.counts != 0) ++row.updates;
        }
    });
}

template <class... Rules>
void add_fused_updates(KernelTable& table, const std::tuple<Rules...>*) {
    const auto add = [&]<class Rule>(std::type_identity<Rule>) {
        table.add<FusedUpdate<Rule>, make_fused_update<Rule>>();
        if constexpr (NormRule<Rule>) table.add<MeasureUpdate<Rule>, make_measure_update<Rule>>();
    };
    (add(std::type_identity<Rules>()), ...);
}

std::unique_ptr<Kernel> make_increment_counter(const IncrementCounter& operation, KernelRequest& request) {
    if (request.out[0].dtype != DType::i64) unsupported_dtype(operation, request.out[0].dtype);
    return make_kernel([counters = static_cast<int>(request.out.size())](const KernelArgs& call) {
        if (call.agreed->code != 0) return;
        for (int i = 0; i < counters; ++i) ++*call.output<std::int64_t>(i);
    });
}

}  // namespace

void add_update_kernels(KernelTable& table) {
    table.add<SumOverShards, make_sum_over_shards>();
    table.add<IncrementCounter, make_increment_counter>();
    add_fused_updates(table, list_of<UpdateRules>);
    table.add<CombineNorms, make_combine_norms>();
    table.add<ReadRows, make_read_rows>();
    table.add<StoreRange, make_store_range>();
    table.add<StoreRows, make_store_rows>();
    table.add<CountUpdates, make_count_updates>();
}

}  // namespace lockstep::cpu
