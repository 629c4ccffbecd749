// Reorder and Fill: kernels that move elements without computing.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/cpu/strided_copy.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/round_up.h"

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

/// oneDNN reads and writes strided tensors, but only if every element has separate memory.
bool has_own_elements(const TensorMeta& meta) {
    for (int i = 0; i < meta.shape.dims(); ++i)
        if (meta.shape[i] > 1 && meta.strides[i] <= 0) return false;
    return true;
}

/// Elements in memory of a tensor that fills it, including the padding of a blocked one.
std::int64_t elements_in_memory(const TensorMeta& meta) {
    return static_cast<std::int64_t>(meta.bytes() / size_of(meta.dtype));
}

/// Conversion of the elements of tensors with the same arrangement.
StridedCopy convert_in_place_of(const TensorMeta& from, const TensorMeta& to) {
    return {from.dtype, {1}, to.dtype, {1}, {elements_in_memory(from)}};
}

bool arranged_alike(const TensorMeta& from, const TensorMeta& to) {
    if (from.opaque == nullptr || to.opaque == nullptr) return false;
    const auto converted = from.opaque->with_dtype(to.dtype);
    return converted != nullptr && converted->equals(*to.opaque);
}

/// Whether to convert through f32: oneDNN may have no reorders for 16-bit floats in its layouts.
bool needs_f32(const TensorMeta& meta) { return meta.opaque != nullptr && is_half_type(meta.dtype); }

TensorMeta in_f32(const TensorMeta& meta) {
    TensorMeta wide = meta;
    wide.dtype = DType::f32;
    wide.opaque = meta.opaque->with_dtype(DType::f32);
    if (wide.opaque == nullptr)
        throw InvalidArgument("unknown layout of 16-bit floats: " + meta.str() + "; expected a contiguous tensor");
    return wide;
}

/// Several copies in sequence, through scratch, if there is no single copy for the conversion.
class ReorderKernel final : public Kernel {
public:
    ReorderKernel(const TensorMeta& from, const TensorMeta& to, int kernel_threads) {
        if (from.opaque == nullptr && to.opaque == nullptr)
            convert(strided_copy(from, to), 0);
        else if (from.dtype != to.dtype && arranged_alike(from, to))
            convert(convert_in_place_of(from, to), 0);
        else
            plan(from, to, kernel_threads);
    }

    std::size_t scratch_bytes() const override { return tensors_bytes_ + work_bytes_; }

    void run(const KernelArgs& call) const override {
        auto* const scratch = static_cast<char*>(call.scratch);
        const void* from = call.in[0];
        for (const Step& step : steps_) {
            void* const to = &step == &steps_.back() ? call.out[0] : scratch + step.place;
            if (step.layout)
                step.layout->run(from, to, scratch != nullptr ? scratch + tensors_bytes_ : nullptr);
            else
                step.conversion->run(from, to, threads);
            from = to;
        }
    }

private:
    struct Step {
        std::optional<LayoutCopy> layout;  ///< or a conversion
        std::optional<StridedCopy> conversion;
        std::size_t place;  ///< offset of its result in scratch; the last step writes the output
    };

    void plan(const TensorMeta& from, const TensorMeta& to, int kernel_threads) {
        TensorMeta now = from;
        if (needs_f32(now)) {
            const TensorMeta wide = in_f32(now);
            convert(convert_in_place_of(now, wide), wide.bytes());
            now = wide;
        }
        const TensorMeta last = needs_f32(to) ? in_f32(to) : to;
        const auto bytes_unless_last = [&](const TensorMeta& made, bool ends) {
            return ends && !needs_f32(to) ? 0 : made.bytes();
        };
        const bool direct = now.dtype == last.dtype && (now.opaque != nullptr || has_own_elements(now)) &&
                            (last.opaque != nullptr || has_own_elements(last));
        if (direct) {
            lay_out(now, last, kernel_threads, bytes_unless_last(last, true));
        } else {
            const TensorMeta plain_last = TensorMeta::contiguous(last.dtype, last.shape);
            if (now.opaque != nullptr) {
                const TensorMeta plain = TensorMeta::contiguous(now.dtype, now.shape);
                lay_out(now, plain, kernel_threads, plain.bytes());
                now = plain;
            }
            const bool packs = last.opaque != nullptr;
            const TensorMeta& converted = packs ? plain_last : last;
            convert(strided_copy(now, converted), bytes_unless_last(converted, !packs));
            if (packs) lay_out(converted, last, kernel_threads, bytes_unless_last(last, true));
        }
        if (needs_f32(to)) convert(convert_in_place_of(last, to), 0);
    }
    /// `bytes`: size of its result in scratch.
    void convert(StridedCopy copy, std::size_t bytes) { add({std::nullopt, copy, 0}, bytes); }
    void lay_out(const TensorMeta& from, const TensorMeta& to, int kernel_threads, std::size_t bytes) {
        LayoutCopy copy(from, to, kernel_threads);
        work_bytes_ = std::max(work_bytes_, copy.scratch_bytes());
        add({copy, std::nullopt, 0}, bytes);
    }
    void add(Step step, std::size_t bytes) {
        step.place = tensors_bytes_;
        steps_.push_back(std::move(step));
        tensors_bytes_ += round_up(bytes, scratch_alignment);
    }

    std::vector<Step> steps_;
    std::size_t tensors_bytes_ = 0, work_bytes_ = 0;
};

std::unique_ptr<Kernel> make_reorder(const Reorder& operation, KernelRequest& request) {
    const TensorMeta &from = request.in[0], &to = request.out[0];
    if (!(from.shape == to.shape))
        throw InvalidArgument(std::string(operation.name) + " of shape " + from.shape.str() + " into shape " +
                              to.shape.str() + "; expected equal shapes");
    return std::make_unique<ReorderKernel>(from, to, request.threads);
}

class CastParametersKernel final : public Kernel {
public:
    explicit CastParametersKernel(std::vector<StridedCopy> copies) : copies_(std::move(copies)) {}
    void run(const KernelArgs& call) const override {
        for (std::size_t i = 0; i < copies_.size(); ++i) copies_[i].run(call.in[i], call.out[i], threads);
    }

private:
    std::vector<StridedCopy> copies_;
};

std::unique_ptr<Kernel> make_cast_parameters(const CastParameters& /*op*/, KernelRequest& request) {
    std::vector<StridedCopy> copies;
    for (std::size_t i = 0; i < request.in.size(); ++i) copies.push_back(strided_copy(request.in[i], request.out[i]));
    return std::make_unique<CastParametersKernel>(std::move(copies));
}

/// Writes one element, converted once, to all places of a row-major tensor.
class DenseFillKernel final : public Kernel {
public:
    DenseFillKernel(double value, const TensorMeta& to) : elements_(to.numel()), bytes_(size_of(to.dtype)) {
        StridedCopy(DType::f64, {1}, to.dtype, {1}, {1}).run(&value, element_.data(), 1);
    }
    void run(const KernelArgs& call) const override {
        switch (bytes_) {
            case 1: return fill<std::uint8_t>(call.out[0]);
            case 2: return fill<Bits16>(call.out[0]);
            case 4: return fill<Bits32>(call.out[0]);
            default: return fill<Bits64>(call.out[0]);
        }
    }

private:
    // The memory holds elements of another type.
    typedef std::uint16_t Bits16 __attribute__((may_alias));
    typedef std::uint32_t Bits32 __attribute__((may_alias));
    typedef std::uint64_t Bits64 __attribute__((may_alias));

    template <class Bits>
    void fill(void* to) const {
        static_assert(sizeof(Bits) <= sizeof element_);
        std::remove_cv_t<Bits> bits{};
        std::memcpy(&bits, element_.data(), sizeof bits);
        for_element_parts(threads, elements_, [to, bits](std::ptrdiff_t begin, std::ptrdiff_t end) {
            std::fill(static_cast<Bits*>(to) + begin, static_cast<Bits*>(to) + end, bits);
        });
    }

    std::int64_t elements_;
    std::size_t bytes_;
    alignas(8) std::array<std::byte, 8> element_{};
};

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
        throw InvalidArgument(std::string(operation.name) + " cannot write " + request.out[0].str() +
                              "; expected a strided tensor (use clone())");
    if (request.out[0].is_contiguous()) return std::make_unique<DenseFillKernel>(operation.value, request.out[0]);
    return std::make_unique<FillKernel>(operation.value, request.out[0]);
}

}  // namespace

void add_copy_kernels(KernelTable& table) {
    table.add<Reorder, make_reorder>();
    table.add<CastParameters, make_cast_parameters>();
    table.add<Fill, make_fill>();
    table.add_half_types<Reorder, make_reorder>();
    table.add_half_types<CastParameters, make_cast_parameters>();
    table.add_half_types<Fill, make_fill>();
}

}  // namespace lockstep::cpu
