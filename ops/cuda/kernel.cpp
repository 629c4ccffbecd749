#include "lockstep/ops/cuda/kernel.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/runtime/error.h"

namespace lockstep::cuda {

namespace {

std::size_t extent(const TensorMeta& meta) {
    TensorMeta from_first = meta;
    from_first.offset = 0;
    return from_first.bytes();
}

}  // namespace

Extents::Extents(const KernelRequest& request, std::size_t scratch_bytes, bool is_cross_shard)
    : scratch_(scratch_bytes), is_cross_shard_(is_cross_shard) {
    for (const TensorMeta& meta : request.in) in_.push_back(extent(meta));
    for (const TensorMeta& meta : request.out) out_.push_back(extent(meta));
}

void Extents::list(const KernelArgs& args, std::vector<Touched>& all) const {
    const std::size_t inputs = in_.size() * static_cast<std::size_t>(is_cross_shard_ ? args.shards : 1);
    for (std::size_t i = 0; i < inputs; ++i)
        if (args.in[i] != nullptr) all.push_back({args.in[i], in_[i % in_.size()], false});
    for (std::size_t i = 0; i < out_.size(); ++i)
        if (args.out[i] != nullptr) all.push_back({args.out[i], out_[i], true});
    if (args.scratch != nullptr) all.push_back({args.scratch, scratch_, true});
    if (args.step != nullptr) all.push_back({args.step, sizeof(StepCounters), false});
    if (args.status != nullptr) all.push_back({args.status, sizeof(StatusWord), true});
    if (args.agreed != nullptr) all.push_back({args.agreed, sizeof(StatusWord), false});
}

void require_at_most(std::string_view operation, std::string_view things, std::size_t count, std::size_t most) {
    if (count > most)
        throw InvalidArgument(
            fmt::format("{}: {} {} are too many; expected at most {} on CUDA devices", operation, count, things, most));
}

void refuse_dtype(std::string_view operation, DType dtype) {
    throw InvalidArgument(fmt::format("{} does not support {} on CUDA devices; expected f32 (use .to(DType::f32))",
                                      operation, name_of(dtype)));
}

bool uses_tf32(const KernelRequest& request) {
    constexpr int first_with_tf32 = 80;  // compute capability
    return request.allow_tf32 && request.out[0].dtype == DType::f32 &&
           device_info(request.device).compute_capability >= first_with_tf32;
}

bool has_one_dtype(const KernelRequest& request) {
    const DType dtype = request.out[0].dtype;
    const auto alike = [&](const TensorMeta& meta) { return meta.shape.empty() || meta.dtype == dtype; };
    return std::all_of(request.in.begin(), request.in.end(), alike) &&
           std::all_of(request.out.begin(), request.out.end(), alike);
}

}  // namespace lockstep::cuda
