#include "lockstep/parallel/reduce/rank_reduction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/parallel/reduce/collectives.h"
#include "lockstep/runtime/autograd.h"

namespace lockstep {

namespace {

/// Mismatch between a hook's result and its bucket; empty if it fits.
std::string misfit(const Tensor& sum, const Tensor& buffer) {
    if (!sum.defined()) return "it returned an undefined tensor; expected the sum of the ranks' buffers";
    if (sum.device().is_host() && sum.dtype() == buffer.dtype() && sum.shape() == buffer.shape()) return {};
    return fmt::format("it returned a tensor of shape {} and {} on {}; expected shape {} and {} on the host",
                       sum.shape().str(), name_of(sum.dtype()), sum.device().str(), buffer.shape().str(),
                       name_of(buffer.dtype()));
}

/// `data`: the elements of the bucket, before and after.
void run_hook(const ReductionHook& hook, Communicator& job, void* data, const GradientBucket& bucket) {
    const Tensor& own = bucket.buffer();
    const auto& memory = own.impl()->storage->buffer;
    std::string wrong;
    try {
        const NoGrad no_grad;
        std::memcpy(memory->data(), data, memory->bytes());
        const Tensor sum = hook.sum(bucket);
        wrong = misfit(sum, own);
        if (wrong.empty() && sum.impl()->storage != own.impl()->storage) own.copy_(sum);
        std::memcpy(data, memory->data(), memory->bytes());
    } catch (const std::exception& error) {
        wrong = error.what();
    }
    if (wrong.empty()) return;
    hook.abort(fmt::format("rank {}: the communication hook failed: {}", job.rank(), wrong));
    job.give_up(fmt::format("communication hook of bucket {}", bucket.index()), memory->bytes(), wrong);
}

}  // namespace

void HookReduction::emit_sum_over_ranks(Emitter& emitter, const Bucket& bucket, const MemoryRef& target) {
    emit_own_sum(emitter, bucket, target);
    if (waits_for_more()) return;
    const DType dtype = memory_.layout(bucket.arena).dtype;
    std::vector<GradientBucket::Part> parts;
    for (int i = bucket.first_segment; i < bucket.last_segment; ++i) {
        const ArenaSegment& segment = memory_.store()->segment({bucket.arena, i});
        const std::int64_t begin = std::max(segment.begin, bucket.begin), end = std::min(segment.end, bucket.end);
        const bool whole = begin == segment.begin && end == segment.end;
        parts.push_back({segment.name, whole, whole ? segment.shape : Shape{end - begin}, begin - bucket.begin,
                         end - bucket.begin});
    }
    emit_collective(emitter, ranks_,
                    {.name = "communication_hook",
                     .body =
                         [hook = ranks_.hook(), number = number_, last = last_, shape = Shape{bucket.elements()}, dtype,
                          parts = std::move(parts)](Communicator& job, const KernelArgs& call) {
                             run_hook(*hook, job, call.out[0], {number, last, Tensor::empty(shape, dtype), parts});
                         },
                     .in = {target},
                     .out = {target},
                     .after_commits = after_commits()});
    if (spec_.optimizer || topology_.ranks == 1) return;
    const TensorMeta flat = reduction_.flat(bucket);
    emitter.run_flat(topology_.collective(), first_device, make_operation(Affine{1.0 / topology_.ranks, 0}),
                     {{flat}, {target}}, {{flat}, {target}});
}

}  // namespace lockstep
