// Kernel objects of the CUDA backend: a function that enqueues on a queue, and what it may touch.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/runtime/cuda/launch.h"
#include "lockstep/runtime/element.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cuda {

/// Bytes of every operand of a kernel, from its first element on.
class Extents {
public:
    /// `spans_shards`: an args brings the inputs of every shard.
    Extents(const KernelRequest& request, std::size_t scratch_bytes, bool spans_shards);
    /// What an args touches; valid until the next call on this thread.
    std::span<const Touched> touched(const KernelArgs& args) const;

private:
    std::vector<std::size_t> in_, out_;
    std::size_t scratch_;
    bool spans_shards_;
};

/// Whether what a kernel would change may be changed. `agreed`: null where it may in any case.
LOCKSTEP_ELEMENT bool is_good(const StatusWord* agreed) { return agreed == nullptr || agreed->code == 0; }

/// A kernel from a callable `void(const Queue&, const KernelArgs&)`. Call it when `request` is final.
template <class F>
std::unique_ptr<Kernel> make_cuda_kernel(const KernelRequest& request, F enqueue, std::size_t scratch_bytes = 0,
                                         Reach reach = Reach::shard) {
    class CudaKernel final : public Kernel {
    public:
        CudaKernel(const KernelRequest& made_for, F function, std::size_t bytes, Reach how_far)
            : extents_(made_for, bytes, how_far == Reach::all_shards), enqueue_(std::move(function)), scratch_(bytes) {}
        std::size_t scratch_bytes() const override { return scratch_; }
        void run(const KernelArgs& args) const override {
            enqueue_(Queue{static_cast<cudaStream_t>(args.launch.native), extents_.touched(args)}, args);
        }

    private:
        Extents extents_;
        F enqueue_;
        std::size_t scratch_;
    };
    return std::make_unique<CudaKernel>(request, std::move(enqueue), scratch_bytes, reach);
}

/// Throws InvalidArgument: `dtype` is not among those that `operation` computes on CUDA devices.
[[noreturn]] void refuse_dtype(std::string_view operation, DType dtype);
/// Throws InvalidArgument when `operation` is asked for more `things` than it takes. (Here, because nvcc does not
/// compile fmt.)
void require_at_most(std::string_view operation, std::string_view things, std::size_t count, std::size_t most);
/// Calls visit(float{}) or visit(double{}); throws InvalidArgument for other dtypes.
template <class Visit>
auto visit_float(std::string_view operation, DType dtype, Visit visit) {
    if (dtype == DType::f64) return visit(double{});
    if (dtype != DType::f32) refuse_dtype(operation, dtype);
    return visit(float{});
}
/// Likewise with Half{} and BFloat16{} too.
template <class Visit>
auto visit_any_float(std::string_view operation, DType dtype, Visit visit) {
    if (dtype == DType::f16) return visit(Half{});
    if (dtype == DType::bf16) return visit(BFloat16{});
    return visit_float(operation, dtype, visit);
}

/// Whether all operands that are there have one dtype.
bool has_one_dtype(const KernelRequest& request);

}  // namespace lockstep::cuda
