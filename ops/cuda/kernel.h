// Kernel objects of the CUDA backend: a function that enqueues on a queue, and the memory that it accesses.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/runtime/cuda/launch.h"
#include "lockstep/runtime/host_device.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cuda {

/// Threads that fill the memory system of any current GPU. Kernels with more work give several units to a thread.
inline constexpr std::int64_t enough_threads = std::int64_t{1} << 17;

/// Sizes in bytes of a kernel's operands, from their first elements on.
class Extents {
public:
    /// `is_cross_shard`: the arguments include the inputs of every shard.
    Extents(const KernelRequest& request, std::size_t scratch_bytes, bool is_cross_shard);
    /// Memory accessed with these arguments.
    void list(const KernelArgs& args, std::vector<Touched>& all) const;

private:
    std::vector<std::size_t> in_, out_;
    std::size_t scratch_;
    bool is_cross_shard_;
};

/// The memory of one run of a kernel.
class Operands final : public Declaration {
public:
    Operands(const Extents& extents, const KernelArgs& args) : extents_(extents), args_(args) {}
    void list(std::vector<Touched>& all) const override { extents_.list(args_, all); }

private:
    const Extents& extents_;
    const KernelArgs& args_;
};

/// Whether a kernel may change its outputs. `agreed`: null if it always may.
LOCKSTEP_HD_INLINE bool is_good(const StatusWord* agreed) { return agreed == nullptr || agreed->code == 0; }

/// A kernel from a callable `void(const Queue&, const KernelArgs&)`. Call this when `request` is final.
template <class F>
std::unique_ptr<Kernel> make_cuda_kernel(const KernelRequest& request, F enqueue, std::size_t scratch_bytes = 0,
                                         OperationScope scope = OperationScope::shard) {
    class CudaKernel final : public Kernel {
    public:
        CudaKernel(const KernelRequest& made_for, F function, std::size_t bytes, OperationScope scope_of_inputs)
            : extents_(made_for, bytes, scope_of_inputs == OperationScope::all_shards),
              enqueue_(std::move(function)),
              scratch_(bytes) {}
        std::size_t scratch_bytes() const override { return scratch_; }
        void run(const KernelArgs& args) const override {
            const Operands operands(extents_, args);
            enqueue_(Queue{static_cast<cudaStream_t>(args.context.native), &operands}, args);
        }

    private:
        Extents extents_;
        F enqueue_;
        std::size_t scratch_;
    };
    return std::make_unique<CudaKernel>(request, std::move(enqueue), scratch_bytes, scope);
}

/// Throws InvalidArgument: `operation` does not support `dtype` on CUDA devices.
[[noreturn]] void refuse_dtype(std::string_view operation, DType dtype);
/// Throws InvalidArgument: `operation` supports fewer `things`. (Defined here because nvcc cannot compile fmt.)
void require_at_most(std::string_view operation, std::string_view things, std::size_t count, std::size_t most);
/// Calls visit(float{}) or visit(double{}); throws InvalidArgument for other dtypes.
template <class Visit>
auto visit_float(std::string_view operation, DType dtype, Visit visit) {
    if (dtype == DType::f64) return visit(double{});
    if (dtype != DType::f32) refuse_dtype(operation, dtype);
    return visit(float{});
}
/// The same, including std::int64_t{}.
template <class Visit>
auto visit_float_or_i64(std::string_view operation, DType dtype, Visit visit) {
    if (dtype == DType::i64) return visit(std::int64_t{});
    return visit_float(operation, dtype, visit);
}
/// Those of visit_float, and Half{} and BFloat16{}.
template <class Visit>
auto visit_any_float(std::string_view operation, DType dtype, Visit visit) {
    if (dtype == DType::f16) return visit(Half{});
    if (dtype == DType::bf16) return visit(BFloat16{});
    return visit_float(operation, dtype, visit);
}

/// Whether a convolution or a matrix product is f32, may be computed in TF32, and the device has TF32.
bool uses_tf32(const KernelRequest& request);
/// Whether all operands that are present have the dtype of the first output.
bool has_one_dtype(const KernelRequest& request);
/// `make` if all operands have one dtype; otherwise null, for KernelTable::add_half_types.
template <class Op, std::unique_ptr<Kernel> (*make)(const Op&, KernelRequest&)>
std::unique_ptr<Kernel> make_for_one_dtype(const Op& op, KernelRequest& request) {
    return has_one_dtype(request) ? make(op, request) : nullptr;
}

}  // namespace lockstep::cuda
