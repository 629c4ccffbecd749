// Masks, sums over shards, and changes of the model's state.
#include <algorithm>
#include <cstring>
#include <iterator>

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

std::unique_ptr<Kernel> make_dropout_mask(const DropoutMask& operation, KernelRequest& request) {
    require_contiguous_output(operation, request, 0);
    const TensorMeta& mask = request.out[0];
    const std::int64_t elements = mask.numel();
    const std::int64_t row_size = operation.batch && mask.shape[0] > 0 ? elements / mask.shape[0] : 0;
    return for_floating(operation, mask.dtype, [&](auto zero) {
        using T = decltype(zero);
        const auto p = static_cast<float>(operation.p);
        const T keep = element::mask_keep<T>(operation.p);
        return make_kernel(
            [elements, row_size, p, keep, batch = operation.batch, threads = request.threads](const KernelArgs& call) {
                const std::uint64_t first = element::mask_counter(batch, call.first_row, row_size, call.shard);
                constexpr std::int64_t draw = 4;  // cost of one in simple elements
                for_parts(worthwhile_threads(threads, draw * elements), elements, element_grain,
                          [&](std::int64_t begin, std::int64_t end) {
                              loops<T>().dropout_mask(call.output<T>(0) + begin, begin, end, *call.step, call.ordinal,
                                                      first, p, keep);
                          });
            });
    });
}

/// y = x * mask, by parts of as many elements as `buffer`, whose mask `draw(buffer, first, count)` writes.
template <class T, class Draw>
void multiply_by_mask(const T* x, T* y, std::int64_t begin, std::int64_t end, const Draw& draw) {
    T buffer[1024];
    for (std::int64_t first = begin; first < end; first += std::ssize(buffer)) {
        const std::int64_t count = std::min<std::int64_t>(std::ssize(buffer), end - first);
        draw(buffer, first, count);
        for (std::int64_t i = 0; i < count; ++i) y[first + i] = x[first + i] * buffer[i];
    }
}

std::unique_ptr<Kernel> make_dropout_forward(const DropoutForward& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    require_contiguous_output(operation, request, 1);
    const Shape& shape = request.out[0].shape;
    const std::int64_t elements = shape.numel();
    const std::int64_t row_size = operation.batch && shape[0] > 0 ? elements / shape[0] : 0;
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([elements, row_size, operation, threads = request.threads](const KernelArgs& call) {
            const std::uint64_t counter = element::mask_counter(operation.batch, call.first_row, row_size, call.shard);
            const auto p = static_cast<float>(operation.p);
            const T keep = element::mask_keep<T>(operation.p);
            auto* const kept = call.output<std::uint8_t>(1);
            const auto draw = [&](T* mask, std::int64_t first, std::int64_t count) {
                // A mask of 1 is drawn first: `keep` may be 0.
                loops<T>().dropout_mask(mask, first, first + count, *call.step, call.ordinal, counter, p, T(1));
                for (std::int64_t i = 0; i < count; ++i) {
                    kept[first + i] = mask[i] != T(0) ? 1 : 0;
                    mask[i] *= keep;
                }
            };
            constexpr std::int64_t cost = 5;  // cost of one in simple elements
            for_parts(worthwhile_threads(threads, cost * elements), elements, element_grain,
                      [&](std::int64_t begin, std::int64_t end) {
                          multiply_by_mask(call.input<T>(0), call.output<T>(0), begin, end, draw);
                      });
        });
    });
}

std::unique_ptr<Kernel> make_dropout_backward(const DropoutBackward& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([elements = request.out[0].numel(), keep = element::mask_keep<T>(operation.p),
                            threads = request.threads](const KernelArgs& call) {
            const auto* const kept = call.input<std::uint8_t>(1);
            const auto draw = [&](T* mask, std::int64_t first, std::int64_t count) {
                for (std::int64_t i = 0; i < count; ++i) mask[i] = kept[first + i] != 0 ? keep : T(0);
            };
            for_parts(worthwhile_threads(threads, elements), elements, element_grain,
                      [&](std::int64_t begin, std::int64_t end) {
                          multiply_by_mask(call.input<T>(0), call.output<T>(0), begin, end, draw);
                      });
        });
    });
}

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
                for_parameters(range, call.in[1], sizeof(RowWith<typename Rule::Options>),
                               [&](const ParameterRow& row, std::int64_t first, std::int64_t count) {
                                   if (row.trainable == 0) return;
                                   for_element_parts(threads, count, [&](std::int64_t begin, std::int64_t end) {
                                       T* states[max_states] = {};
                                       int next = 1;
                                       for (std::size_t s = 0; s < Rule::states.size(); ++s)
                                           if ((given >> s & 1u) != 0)
                                               states[s] = call.output<T>(next++) + first + begin;
                                       loop(row, call.input<T>(0) + first + begin, call.output<T>(0) + first + begin,
                                            states, end - begin);
                                   });
                               });
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
    (table.add<FusedUpdate<Rules>, make_fused_update<Rules>>(), ...);
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
    table.add<DropoutMask, make_dropout_mask>();
    table.add<DropoutForward, make_dropout_forward>();
    table.add<DropoutBackward, make_dropout_backward>();
    table.add<SumOverShards, make_sum_over_shards>();
    table.add<IncrementCounter, make_increment_counter>();
    add_fused_updates(table, list_of<UpdateRules>);
    table.add<ReadRows, make_read_rows>();
    table.add<StoreRange, make_store_range>();
    table.add<StoreRows, make_store_rows>();
    table.add<CountUpdates, make_count_updates>();
}

}  // namespace lockstep::cpu
