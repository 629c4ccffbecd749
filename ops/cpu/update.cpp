// Masks, sums over shards, and what changes the state of a model.
#include <algorithm>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/arithmetic.h"

namespace lockstep {
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
            [elements, row_size, p, keep, batch = operation.batch, threads = request.threads](const Invocation& call) {
                const std::uint64_t first = element::mask_counter(batch, call.first_row, row_size, call.shard);
                constexpr std::int64_t draw = 4;  // simple elements that one costs
                for_parts(worthwhile_threads(threads, draw * elements), elements, element_grain,
                          [&](std::int64_t begin, std::int64_t end) {
                              loops<T>().dropout_mask(call.output<T>(0) + begin, begin, end, *call.step, call.ordinal,
                                                      first, p, keep);
                          });
            });
    });
}

class SumOverShardsKernel final : public Kernel {
public:
    explicit SumOverShardsKernel(const KernelRequest& request) {
        for (const TensorMeta& meta : request.out) tensors_.push_back({meta.dtype, meta.numel()});
    }
    void run(const Invocation& call) const override {
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
    void sum(const Invocation& call, std::size_t i) const {
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

/// Element of the arena that element 0 of a tensor is: a tensor as long as the range holds just that.
std::int64_t arena_origin(const SgdUpdate& operation, const TensorMeta& meta) {
    return meta.numel() == operation.end - operation.begin ? operation.begin : 0;
}

std::unique_ptr<Kernel> make_sgd_update(const SgdUpdate& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    const bool has_buffer = request.out.size() > 1 && is_given(request.out[1]);
    if (has_buffer) require_contiguous_output(operation, request, 1);
    const std::int64_t gradient_origin = arena_origin(operation, request.in[0]);
    const std::int64_t parameter_origin = arena_origin(operation, request.out[0]);
    const std::int64_t buffer_origin = has_buffer ? arena_origin(operation, request.out[1]) : 0;
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([=, threads = request.threads](const Invocation& call) {
            if (call.agreed->code != 0) return;
            const auto* segments = call.input<Segment>(1);
            for (int s = operation.first_segment; s < operation.last_segment; ++s) {
                const Segment& segment = segments[s];
                if (segment.trainable == 0) continue;
                const std::int64_t first = std::max(segment.begin, operation.begin);
                const std::int64_t count = std::min(segment.end, operation.end) - first;
                const T* gradients = call.input<T>(0) + first - gradient_origin;
                T* parameters = call.output<T>(0) + first - parameter_origin;
                T* buffer = has_buffer ? call.output<T>(1) + first - buffer_origin : nullptr;
                for_element_parts(threads, count, [&](std::int64_t begin, std::int64_t end) {
                    loops<T>().sgd(segment, gradients + begin, parameters + begin,
                                   buffer != nullptr ? buffer + begin : nullptr, end - begin);
                });
            }
        });
    });
}

std::unique_ptr<Kernel> make_increment_counter(const IncrementCounter& operation, KernelRequest& request) {
    if (request.out[0].dtype != DType::i64) unsupported_dtype(operation, request.out[0].dtype);
    return make_kernel([](const Invocation& call) {
        if (call.agreed->code == 0) ++*call.output<std::int64_t>(0);
    });
}

}  // namespace

void add_update_kernels(KernelTable& table) {
    table.add<DropoutMask, make_dropout_mask>();
    table.add<SumOverShards, make_sum_over_shards>();
    table.add<SgdUpdate, make_sgd_update>();
    table.add<IncrementCounter, make_increment_counter>();
}

}  // namespace lockstep
