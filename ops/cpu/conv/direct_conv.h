// Convolution by oneDNN's direct kernels, for every shape without a faster kernel.
#pragma once

#include <array>
#include <cstddef>

#include "lockstep/ops/cpu/conv/conv_shape.h"
#include "lockstep/ops/cpu/onednn.h"

namespace lockstep::cpu {

/// Layouts of x and y are oneDNN's choice for the forward pass, unless given; weights, bias and their gradients are
/// plain. Operands that a pass needs in another layout are reordered internally, in the caller's scratch (64-byte
/// aligned). The object is immutable: any thread may run it, and several at once with separate scratch. Bits of the
/// weight gradient depend on `threads`.
class DirectConv {
public:
    /// Throws DeviceError if oneDNN offers only reference kernels.
    DirectConv(const ConvShape& shape, int threads);
    /// The same with given layouts of x and y.
    DirectConv(const ConvShape& shape, int threads, const onednn::Desc& src, const onednn::Desc& dst);

    const onednn::Desc& src_layout() const { return src_; }
    const onednn::Desc& dst_layout() const { return dst_; }
    std::size_t scratch_bytes() const;

    /// bias and db are used only when shape.bias.
    void forward(const float* x, const float* w, const float* bias, float* y, void* scratch) const;
    void backward_data(const float* dy, const float* w, float* dx, void* scratch) const;
    void backward_weights(const float* x, const float* dy, float* dw, float* db, void* scratch) const;

private:
    /// An argument of a pass: the caller's layout, the kernel's layout, and a copy in scratch if they differ.
    struct Operand {
        int argument = 0;
        onednn::Desc outside, inside;
        bool written = false;
        dnnl::reorder copy;  // empty when the layouts agree
        onednn::Desc copy_scratchpad;
        std::size_t copy_at = 0, copy_scratchpad_at = 0;  // offsets in scratch
    };
    struct Pass {
        dnnl::primitive kernel;
        std::array<Operand, 4> operands;
        std::size_t count = 0;
        onednn::Desc scratchpad;
        std::size_t scratch_bytes = 0;  // the scratchpad first, then the copies

        void begin(dnnl::primitive primitive, const onednn::Desc& scratchpad_desc);
        void add(int argument, bool written, const onednn::Desc& outside, const onednn::Desc& inside);
        void run(const std::array<void*, 4>& data, void* scratch) const;
    };

    DirectConv(const ConvShape& shape, int threads, const onednn::Desc* src, const onednn::Desc* dst);

    int threads_;
    onednn::Desc src_, dst_;
    Pass forward_, backward_data_, backward_weights_;
};

}  // namespace lockstep::cpu
