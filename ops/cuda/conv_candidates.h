// Candidates for computing a convolution with cuDNN, and execution with the first one that cuDNN accepts.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/ops/cuda/conv_algorithms.h"
#include "lockstep/ops/cuda/convolution_descriptors.h"
#include "lockstep/ops/cuda/copy.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/runtime/cuda/stream_memory.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cuda {

/// A layout and an algorithm for a convolution.
template <class Algorithm>
struct Candidate {
    std::shared_ptr<const Convolution> convolution;
    Algorithm algorithm;
    std::size_t workspace;
};

/// Multiplications and additions of the direct algorithm.
inline double operations_of(const Sizes& sizes) {
    return 2.0 * static_cast<double>(sizes.y.numel()) * static_cast<double>(sizes.w.numel() / sizes.w[0]);
}

/// The candidates that cuDNN reports as supported on the request's device, in the order in which they are tried. At
/// least one for f32. `ask(handle, convolution, algorithm, &bytes)` is cuDNN's workspace query.
template <class Algorithm, class Ask>
std::vector<Candidate<Algorithm>> list_candidates(const KernelRequest& request, const Sizes& sizes,
                                                  const ConvGeometry& geometry, const AlgorithmRule<Algorithm>& rule,
                                                  const char* question, Ask ask) {
    const bool tf32 = uses_tf32(request);
    DeviceQuery query(request.device);
    std::vector<Candidate<Algorithm>> ways;
    for (const bool channels_last : rule.channels_last) {
        const auto convolution = std::make_shared<const Convolution>(sizes, geometry, channels_last, tf32);
        const auto add = [&](Algorithm algorithm, const auto& is_wanted) {
            std::size_t bytes = 0;
            if (is_supported(ask(query.libraries().dnn, *convolution, algorithm, &bytes), question) && is_wanted(bytes))
                ways.push_back({convolution, algorithm, bytes});
        };
        const bool small_window = sizes.w[2] == 3 && sizes.w[3] == 3 && geometry.is_dense();
        if (rule.operations_per_byte && small_window && !channels_last)
            add(rule.winograd, [&](std::size_t bytes) {
                return bytes <= max_workspace &&
                       operations_of(sizes) >= *rule.operations_per_byte * static_cast<double>(bytes);
            });
        for (const Algorithm algorithm : rule.direct) add(algorithm, [](std::size_t) { return true; });
        if (!geometry.is_dense()) continue;
        for (const Algorithm algorithm : rule.others)
            if (algorithm != rule.winograd || small_window) add(algorithm, [](std::size_t) { return true; });
    }
    if (ways.empty() && sizes.dtype == DType::f32)
        throw DeviceError(fmt::format(
            "cuDNN has no deterministic algorithm for a convolution of x {} with weights {}; expected other sizes",
            sizes.x.str(), sizes.w.str()));
    return ways;
}

/// Workspace for all candidates in the layout of the first one, which is that of the kernel.
template <class Algorithm>
std::size_t workspace_of(const std::vector<Candidate<Algorithm>>& ways) {
    std::size_t most = 0;
    for (const auto& way : ways)
        if (way.convolution == ways.front().convolution) most = std::max(most, way.workspace);
    return most;
}

/// cuDNN's handle, set to `queue`.
class Session {
public:
    Session(const Queue& queue, const KernelArgs& v)
        : libraries_(libraries_of(v.context.device)), lock_(libraries_.mutex) {
        check(cudnnSetStream(libraries_.dnn, queue.stream), "cudnnSetStream");
    }
    cudnnHandle_t handle() const { return libraries_.dnn; }

private:
    Libraries& libraries_;
    std::scoped_lock<std::mutex> lock_;
};

inline void* behind(void* memory, std::size_t bytes) { return static_cast<char*>(memory) + bytes; }

/// Whether cuDNN reads or computes the weights.
enum class Weights : std::uint8_t { read, computed };

/// The memory of one run: scratch begins with computed weights in cuDNN's order, followed by the workspace. If cuDNN
/// rejects the kernel's layout at run time, a candidate in the other layout gets separate memory, and weights and
/// images are copied there and back.
class CudnnCall final : public Declaration {
public:
    CudnnCall(const Queue& queue, void* scratch, const Convolution& made_for, const Convolution& way,
              std::size_t workspace, Weights weights)
        : way_(way), scratch_(scratch), given_(queue) {
        const bool other = way.channels_last() != made_for.channels_last();
        const bool has_weights = weights == Weights::read ? other : way.converts_weights();
        weight_bytes_ = has_weights ? way.weight_bytes() : 0;
        if (!other) return;
        const std::size_t before = weight_bytes_ + round_up(workspace, scratch_alignment);
        const Sizes& sizes = way.sizes();
        const std::size_t bytes = before + aligned_bytes(sizes.x, sizes.dtype) + aligned_bytes(sizes.y, sizes.dtype);
        own_.emplace(queue.stream, bytes);
        scratch_ = own_->data();
        images_ = behind(scratch_, before);
        own_bytes_ = bytes;
        queue_.declaration = this;
    }
    CudnnCall(const CudnnCall&) = delete;
    CudnnCall& operator=(const CudnnCall&) = delete;

    const Queue& queue() const { return queue_; }
    void list(std::vector<Touched>& all) const override {
        given_.declaration->list(all);
        all.push_back({own_->data(), own_bytes_, true});
    }
    /// Memory for computed weights.
    void* scratch() const { return scratch_; }
    void* workspace() const { return behind(scratch_, weight_bytes_); }
    /// The weights in cuDNN's order, from the kernel's.
    const void* weights(const void* given) const {
        const FilterShape shape = FilterShape::of(way_.sizes().w);
        if (!own_ || shape.channels == 1 || shape.taps == 1) return given;
        convert_filters(queue_, way_.sizes().dtype, shape, way_.channels_last(), scratch_, given);
        return scratch_;
    }
    /// An input image.
    const void* in(const Shape& shape, const void* given) {
        if (!own_) return given;
        void* copy = next_image(shape);
        copy_strided(queue_, "image_to_other_layout", way_.sizes().dtype, shape, copy,
                     strides(shape, way_.channels_last()), given, strides(shape, !way_.channels_last()));
        return copy;
    }
    /// An output image: `store` copies it to `given`.
    void* out(const Shape& shape, void* given) { return own_ ? next_image(shape) : given; }
    void store(const Shape& shape, void* given, const void* written) const {
        if (!own_) return;
        copy_strided(queue_, "image_from_other_layout", way_.sizes().dtype, shape, given,
                     strides(shape, !way_.channels_last()), written, strides(shape, way_.channels_last()));
    }

private:
    static Shape strides(const Shape& shape, bool channels_last) {
        return channels_last ? channels_last_strides(shape) : shape.contiguous_strides();
    }
    void* next_image(const Shape& shape) {
        void* image = images_;
        images_ = behind(images_, aligned_bytes(shape, way_.sizes().dtype));
        return image;
    }

    const Convolution& way_;
    void* scratch_;
    std::size_t weight_bytes_;
    void* images_ = nullptr;
    std::optional<StreamMemory> own_;
    std::size_t own_bytes_ = 0;
    Queue given_, queue_ = given_;
};

/// Calls `perform(way, run)` for the candidates in order until cuDNN accepts one: the queries at creation may have
/// reported more than cuDNN supports. The order is fixed, and so is the result.
template <class Algorithm, class Perform>
void run_first(const std::vector<Candidate<Algorithm>>& ways, const Queue& queue, const KernelArgs& v, Weights weights,
               const char* call, Perform perform) {
    for (const auto& way : ways) {
        CudnnCall run(queue, v.scratch, *ways.front().convolution, *way.convolution, way.workspace, weights);
        const cudnnStatus_t status = perform(way, run);
        if (&way == &ways.back()) check(status, call);
        if (is_supported(status, call)) return;
    }
}

}  // namespace lockstep::cuda
