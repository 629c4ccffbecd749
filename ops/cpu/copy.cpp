// Reorder and Fill: kernels that move elements and compute nothing.
#include <algorithm>
#include <optional>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/strided_copy.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {
namespace {

StridedCopy strided_copy(const TensorMeta& from, const TensorMeta& to) {
    return {from.dtype, from.strides, to.dtype, to.strides, to.shape};
}

/// Between two layouts of one dtype, at least one of them oneDNN's.
class LayoutCopy {
public:
    LayoutCopy(const TensorMeta& from, const TensorMeta& to, int threads) : from_(desc_of(from)), to_(desc_of(to)) {
        const onednn::ThreadScope scope(threads);
        const auto chosen = onednn::reorder(from_, to_);
        reorder_ = dnnl::reorder(chosen);
        scratchpad_ = chosen.scratchpad_desc();
    }
    std::size_t scratch_bytes() const { return scratchpad_.get_size(); }
    void run(const void* from, void* to, void* scratch) const {
        const dnnl::engine& engine = onednn::cpu_engine();
        reorder_.execute(onednn::cpu_stream(), {{DNNL_ARG_FROM, {from_, engine, const_cast<void*>(from)}},
                                                {DNNL_ARG_TO, {to_, engine, to}},
                                                {DNNL_ARG_SCRATCHPAD, {scratchpad_, engine, scratch}}});
    }

private:
    onednn::Desc from_, to_, scratchpad_;
    dnnl::reorder reorder_;
};

/// oneDNN reads and writes strided tensors, but no element twice.
bool has_own_elements(const TensorMeta& meta) {
    for (int i = 0; i < meta.shape.dims(); ++i)
        if (meta.shape[i] > 1 && meta.strides[i] <= 0) return false;
    return true;
}

/// Through row-major tensors in scratch where no single step does it.
class ReorderKernel final : public Kernel {
public:
    ReorderKernel(const TensorMeta& from, const TensorMeta& to, int kernel_threads) {
        if (from.opaque == nullptr && to.opaque == nullptr) {
            convert_.emplace(strided_copy(from, to));
            return;
        }
        const bool direct = from.dtype == to.dtype && (from.opaque != nullptr || has_own_elements(from)) &&
                            (to.opaque != nullptr || has_own_elements(to));
        if (direct) {
            unpack_.emplace(from, to, kernel_threads);
        } else {
            const TensorMeta plain_from = TensorMeta::contiguous(from.dtype, from.shape);
            const TensorMeta plain_to = TensorMeta::contiguous(to.dtype, to.shape);
            if (from.opaque != nullptr) unpack_.emplace(from, plain_from, kernel_threads);
            if (to.opaque != nullptr) pack_.emplace(plain_to, to, kernel_threads);
            convert_.emplace(strided_copy(unpack_ ? plain_from : from, pack_ ? plain_to : to));
            if (unpack_) unpacked_bytes_ = rounded(plain_from.bytes());
            if (pack_) converted_bytes_ = rounded(plain_to.bytes());
        }
        work_bytes_ = std::max(unpack_ ? unpack_->scratch_bytes() : 0, pack_ ? pack_->scratch_bytes() : 0);
    }

    std::size_t scratch_bytes() const override { return unpacked_bytes_ + converted_bytes_ + work_bytes_; }

    void run(const KernelArgs& call) const override {
        auto* const scratch = static_cast<char*>(call.scratch);
        char* const work = scratch != nullptr ? scratch + unpacked_bytes_ + converted_bytes_ : nullptr;
        const void* from = call.in[0];
        if (unpack_) {
            void* const to = convert_ ? scratch : call.out[0];
            unpack_->run(from, to, work);
            from = to;
        }
        if (!convert_) return;
        void* const to = pack_ ? scratch + unpacked_bytes_ : call.out[0];
        convert_->run(from, to, threads);
        if (pack_) pack_->run(to, call.out[0], work);
    }

private:
    static std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

    std::optional<LayoutCopy> unpack_, pack_;
    std::optional<StridedCopy> convert_;
    std::size_t unpacked_bytes_ = 0, converted_bytes_ = 0, work_bytes_ = 0;
};

std::unique_ptr<Kernel> make_reorder(const Reorder& operation, KernelRequest& request) {
    const TensorMeta &from = request.in[0], &to = request.out[0];
    if (!(from.shape == to.shape))
        throw InvalidArgument(std::string(operation.name) + " of shape " + from.shape.str() + " into shape " +
                              to.shape.str() + ": they must agree");
    return std::make_unique<ReorderKernel>(from, to, request.threads);
}

/// Copies one broadcast element.
class FillKernel final : public Kernel {
public:
    FillKernel(double value, const TensorMeta& to)
        : value_(value), copy_(DType::f64, zero_strides(to.shape), to.dtype, to.strides, to.shape) {}
    void run(const KernelArgs& call) const override { copy_.run(&value_, call.out[0], threads); }

private:
    static Shape zero_strides(Shape shape) {
        for (int i = 0; i < shape.dims(); ++i) shape[i] = 0;
        return shape;
    }
    double value_;
    StridedCopy copy_;
};

std::unique_ptr<Kernel> make_fill(const Fill& operation, KernelRequest& request) {
    if (request.out[0].opaque != nullptr)
        throw InvalidArgument(std::string(operation.name) + " writes a strided tensor, not " + request.out[0].str() +
                              "; clone() it first");
    return std::make_unique<FillKernel>(operation.value, request.out[0]);
}

}  // namespace

void add_copy_kernels(KernelTable& table) {
    table.add<Reorder, make_reorder>();
    table.add<Fill, make_fill>();
}

}  // namespace lockstep::cpu
