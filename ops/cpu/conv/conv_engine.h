// Two-dimensional convolution on the CPU: one object per shape, which selects the kernels.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/ops/cpu/conv/conv_shape.h"
#include "lockstep/ops/cpu/conv/depthwise.h"
#include "lockstep/ops/cpu/conv/direct_conv.h"
#include "lockstep/ops/cpu/conv/first_layer.h"
#include "lockstep/ops/cpu/conv/winograd.h"
#include "lockstep/ops/cpu/isa.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {

/// Selection of kernels for a shape.
enum class ConvPath {
    winograd,     // 3x3, stride 1, padding up to 2, channels in whole blocks, one group and no dilation; unless direct
                  // kernels are requested
    depthwise,    // AVX2 or AVX-512, as many groups as channels in x and y, more than one: own kernels
    first_layer,  // AVX2, 3x3 or 5x5 of 1 to 4 channels: own kernel for the weight gradient, oneDNN for the rest
    direct        // all other shapes: oneDNN
};

/// Activations have the layouts that the object asks for: plain, or blocked with channels padded by zeros, which every
/// kernel preserves. All pointers to activations and scratch are aligned to 64 bytes; weights, bias and their gradients
/// are plain and may have any address. The object is immutable: any thread may run it, and several at once with
/// separate scratch. Own kernels allocate nothing; oneDNN creates some small objects on the host in each call. The bits
/// of the library's own kernels do not depend on the number of threads, those of oneDNN's weight gradient do.
class ConvEngine {
public:
    /// Kernels for `threads` OpenMP threads and at most `isa`. Throws InvalidArgument for an impossible shape and
    /// DeviceError if oneDNN has only reference kernels.
    ConvEngine(const ConvShape& shape, int threads, Isa isa = allowed_isa(),
               ConvAlgorithm algorithm = ConvAlgorithm::automatic);
    /// The same with algorithm `way`, one of algorithms(). Throws InvalidArgument for another name.
    ConvEngine(const ConvShape& shape, int threads, Isa isa, std::string_view way);

    /// Names of the algorithms for a shape, each with its kernels and layouts of x and y. The first one is the choice
    /// of ConvAlgorithm::automatic, a rule of shape and instruction set; none is less accurate than the choices of the
    /// rules.
    static std::vector<std::string> algorithms(const ConvShape& shape, Isa isa = allowed_isa());

    const ConvShape& shape() const { return shape_; }
    ConvPath path() const { return path_; }
    /// Layout of x and dx, and layout of y and dy.
    const onednn::Desc& src_layout() const { return src_; }
    const onednn::Desc& dst_layout() const { return dst_; }
    /// Enough for each of the passes.
    std::size_t scratch_bytes() const;

    /// y = x * w + bias, then max(y, 0) if `relu`; bias is read only if shape().bias.
    void forward(const float* x, const float* w, const float* bias, bool relu, float* y, void* scratch) const;
    /// If x is the output of a ReLU, pass x as `made`: dx is then 0 where x <= 0. Otherwise null.
    void backward_data(const float* dy, const float* w, const float* made, float* dx, void* scratch) const;
    /// Overwrites dw and, if shape().bias, db.
    void backward_weights(const float* x, const float* dy, float* dw, float* db, void* scratch) const;

private:
    void make_winograd(Isa with);
    void make_depthwise(Isa isa);
    void make_direct(std::string_view layouts);

    ConvShape shape_;
    int threads_;
    ConvPath path_;
    onednn::Desc src_, dst_;
    std::optional<WinogradConv> winograd_;
    std::optional<DepthwiseConv> depthwise_;
    std::optional<FirstLayerGradient> first_layer_;
    std::optional<DirectConv> direct_;
};

}  // namespace lockstep::cpu
