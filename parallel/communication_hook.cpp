#include "lockstep/parallel/communication_hook.h"

#include <utility>

#include "lockstep/ops/functional.h"

namespace lockstep {

namespace {

/// Divided first: the sum over many ranks would leave the range of f16.
CommunicationHook compressed(DType dtype, CommunicationHook hook) {
    return [dtype, hook = std::move(hook)](const GradientBucket& bucket, ProcessGroup& group) {
        const double ranks = group.size();
        const Tensor sum = hook(bucket.with((bucket.buffer() * (1 / ranks)).to(dtype)), group);
        return sum.to(bucket.buffer().dtype()) * ranks;
    };
}

}  // namespace

CommunicationHook all_reduce_hook() {
    return [](const GradientBucket& bucket, ProcessGroup& group) {
        group.all_reduce(bucket.buffer());
        return bucket.buffer();
    };
}

CommunicationHook fp16_compress_wrapper(CommunicationHook hook) { return compressed(DType::f16, std::move(hook)); }
CommunicationHook bf16_compress_wrapper(CommunicationHook hook) { return compressed(DType::bf16, std::move(hook)); }
CommunicationHook fp16_compress_hook() { return fp16_compress_wrapper(all_reduce_hook()); }
CommunicationHook bf16_compress_hook() { return bf16_compress_wrapper(all_reduce_hook()); }

}  // namespace lockstep
