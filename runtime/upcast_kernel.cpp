#include "lockstep/runtime/internal/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/threads.h"
#include "lockstep/runtime/log.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

namespace {

/// `meta` with elements of `dtype`, in the same arrangement if it exists for that dtype.
TensorMeta with_dtype(const TensorMeta& meta, DType dtype) {
    auto opaque = meta.opaque ? meta.opaque->with_dtype(dtype) : nullptr;
    if (meta.opaque && !opaque) return TensorMeta::contiguous(dtype, meta.shape, meta.batch);
    TensorMeta result = meta;
    result.dtype = dtype;
    result.opaque = std::move(opaque);
    return result;
}

bool is_half(const TensorMeta& meta) { return is_half_type(meta.dtype); }

TensorMeta from_start(TensorMeta meta) {
    meta.offset = 0;
    return meta;
}

/// An input in f32: in the same arrangement if that fills its memory exactly once, else row-major.
TensorMeta widened(const TensorMeta& meta) {
    const TensorMeta alike = from_start(with_dtype(meta, DType::f32));
    const bool fills = alike.opaque || alike.bytes() == static_cast<std::size_t>(alike.numel()) * sizeof(float);
    return fills ? alike : TensorMeta::contiguous(DType::f32, meta.shape, meta.batch);
}

/// An operand that is converted before or after the f32 kernel.
struct Conversion {
    std::size_t operand;
    std::unique_ptr<Kernel> kernel;
    std::size_t place;  ///< offset of the f32 tensor in scratch
};

/// Whether the processor has bf16 instructions and they may be used.
bool computes_bf16() {
    const char* limit = std::getenv("LOCKSTEP_CPU_ISA");
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16") && (limit == nullptr || std::string_view(limit) == "avx512");
}

/// Pointers to the operands of one call.
struct WidePointers {
    std::vector<void*> in, out;
};

class UpcastKernel final : public Kernel {
public:
    UpcastKernel(const KernelRequest& request, OperationScope scope)
        : inputs_(request.in.size()),
          outputs_(request.out.size()),
          shards_(scope == OperationScope::all_shards ? request.shards : 1) {}

    void set_kernel(std::unique_ptr<Kernel> kernel, int kernel_threads) {
        kernel_ = std::move(kernel);
        kernel_->threads = kernel_threads;
        work_bytes_ = std::max(work_bytes_, kernel_->scratch_bytes());
    }
    /// `bytes`: size of the f32 tensor, once per shard.
    void convert_input(std::size_t input, std::unique_ptr<Kernel> kernel, std::size_t bytes) {
        add(before_, input, std::move(kernel), bytes, static_cast<std::size_t>(shards_));
    }
    void convert_output(std::size_t output, std::unique_ptr<Kernel> kernel, std::size_t bytes) {
        add(after_, output, std::move(kernel), bytes, 1);
    }

    std::size_t scratch_bytes() const override { return tensors_bytes_ + work_bytes_; }

    void run(const KernelArgs& call) const override {
        auto* const scratch = static_cast<char*>(call.scratch);
        void* const work = scratch + tensors_bytes_;
        const int shards = shards_ > 1 ? call.shards : 1;
        auto& [in, out] = per_thread<WidePointers>();
        in.assign(call.in, call.in + inputs_ * static_cast<std::size_t>(shards));
        out.assign(call.out, call.out + outputs_);
        for (const Conversion& conversion : before_)
            for (int shard = 0; shard < shards; ++shard) {
                void*& operand = in[conversion.operand + static_cast<std::size_t>(shard) * inputs_];
                if (operand == nullptr) continue;
                void* const wide = scratch + conversion.place + static_cast<std::size_t>(shard) * bytes_of(conversion);
                run_part(*conversion.kernel, call, &operand, &wide, work);
                operand = wide;
            }
        for (const Conversion& conversion : after_)
            if (out[conversion.operand] != nullptr) out[conversion.operand] = scratch + conversion.place;
        run_part(*kernel_, call, in.data(), out.data(), work);
        for (const Conversion& conversion : after_)
            if (out[conversion.operand] != nullptr)
                run_part(*conversion.kernel, call, &out[conversion.operand], &call.out[conversion.operand], work);
    }

private:
    void add(std::vector<Conversion>& to, std::size_t operand, std::unique_ptr<Kernel> kernel, std::size_t bytes,
             std::size_t count) {
        work_bytes_ = std::max(work_bytes_, kernel->scratch_bytes());
        const std::size_t room = round_up(bytes, scratch_alignment);
        to.push_back({operand, std::move(kernel), tensors_bytes_});
        rooms_.push_back(room);
        tensors_bytes_ += room * count;
    }
    std::size_t bytes_of(const Conversion& conversion) const {
        return rooms_[static_cast<std::size_t>(&conversion - before_.data())];
    }
    static void run_part(const Kernel& kernel, const KernelArgs& call, void* const* in, void* const* out, void* work) {
        KernelArgs part = call;
        part.in = in;
        part.out = out;
        part.scratch = kernel.scratch_bytes() != 0 ? work : nullptr;
        kernel.run(part);
    }

    std::size_t inputs_, outputs_;
    int shards_;
    std::unique_ptr<Kernel> kernel_;
    std::vector<Conversion> before_, after_;
    std::vector<std::size_t> rooms_;  ///< bytes of each input's f32 tensor, then of each output's
    std::size_t tensors_bytes_ = 0, work_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> upcast_kernel(const Operation& operation, KernelRequest& request, const MakeWide& make_wide,
                                      const MakeConversion& make_conversion) {
    if (operation.commits())
        throw InvalidArgument(
            fmt::format("{} changes lasting state, which must not be f16 or bf16; expected f32 (use .to(DType::f32))",
                        operation.name()));
    KernelRequest wide = request;
    for (TensorMeta& meta : wide.in)
        if (is_half(meta)) meta = widened(meta);
    for (TensorMeta& meta : wide.out)
        if (is_half(meta)) meta = with_dtype(meta, DType::f32);
    std::unique_ptr<Kernel> kernel = make_wide(wide);
    auto result = std::make_unique<UpcastKernel>(request, operation.scope());
    for (std::size_t i = 0; i < request.in.size(); ++i) {
        if (!is_half(request.in[i])) {
            request.in[i] = wide.in[i];
            continue;
        }
        const TensorMeta from = from_start(request.in[i]), to = from_start(wide.in[i]);
        result->convert_input(i, make_conversion(from, to), to.bytes());
    }
    for (std::size_t i = 0; i < request.out.size(); ++i) {
        if (!is_half(request.out[i])) {
            request.out[i] = wide.out[i];
            continue;
        }
        const std::int64_t offset = request.out[i].offset;
        request.out[i] = with_dtype(wide.out[i], request.out[i].dtype);
        request.out[i].offset = offset;
        const TensorMeta from = from_start(wide.out[i]), to = from_start(request.out[i]);
        result->convert_output(i, make_conversion(from, to), from.bytes());
    }
    result->set_kernel(std::move(kernel), request.threads);
    return result;
}

void warn_emulated(const KernelRequest& request) {
    const auto asks = [&](DType dtype) {
        const auto has = [dtype](const TensorMeta& meta) { return meta.dtype == dtype; };
        return std::any_of(request.in.begin(), request.in.end(), has) ||
               std::any_of(request.out.begin(), request.out.end(), has);
    };
    static std::atomic<bool> warned_f16{false}, warned_bf16{false};
    if (!warned_f16.load(std::memory_order_relaxed) && asks(DType::f16) && !warned_f16.exchange(true))
        warn(
            "f16 is emulated on CPU devices: it is computed in f32 and rounded, so it is not faster than f32; bf16 may "
            "be");
    if (!warned_bf16.load(std::memory_order_relaxed) && asks(DType::bf16) && !computes_bf16() &&
        !warned_bf16.exchange(true))
        warn(
            "bf16 is emulated: without AVX512_BF16, or if LOCKSTEP_CPU_ISA disables it, it is computed in f32 and "
            "rounded, so it is not faster than f32");
}

}  // namespace lockstep
