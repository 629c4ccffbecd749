// Two-dimensional convolution on the CPU: one object per shape, which chooses the kernels.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/ops/cpu/conv/conv_shape.h"
#include "lockstep/ops/cpu/conv/direct_conv.h"
#include "lockstep/ops/cpu/conv/first_layer.h"
#include "lockstep/ops/cpu/conv/winograd.h"
#include "lockstep/ops/cpu/isa.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {

/// Which kernels run a shape.
enum class ConvPath {
    winograd,     // 3x3, stride 1, padding up to 2, channels in whole blocks; unless asked for direct ones
    first_layer,  // AVX2, 3x3 or 5x5 of 1 to 4 channels: own weight gradient, the rest oneDNN's
    direct        // all others: oneDNN
};

/// Activations lie in the layouts the object asks for: plain, or blocked with channels padded by zeros, which every
/// kernel keeps zero. All pointers to activations and scratch are aligned to 64 bytes; weights, bias and their
/// gradients are plain and at any address. The object is constant once made: it may be made in one thread and run in
/// another, and in several at once if each brings its own scratch. Own kernels allocate nothing; oneDNN makes some
/// small objects on the host at each call.
/// Winograd's bits don't depend on the number of threads, those of oneDNN's weight gradient do.
class ConvEngine {
public:
    /// Kernels for `threads` OpenMP threads and at most `isa`. Throws InvalidArgument for an impossible shape and
    /// DeviceError where oneDNN has only reference kernels.
    ConvEngine(const ConvShape& shape, int threads, Isa isa = allowed_isa(),
               ConvAlgorithm algorithm = ConvAlgorithm::automatic);
    /// The same, computed in one of `ways`. Throws InvalidArgument for another name.
    ConvEngine(const ConvShape& shape, int threads, Isa isa, std::string_view way);

    /// The names of the ways in which a shape may be computed: kernels and layouts of x and y. The first one is that of
    /// ConvAlgorithm::automatic, a rule of shape and instruction set; none is less exact than those that rules choose.
    static std::vector<std::string> ways(const ConvShape& shape, Isa isa = allowed_isa());

    const ConvShape& shape() const { return shape_; }
    ConvPath path() const { return path_; }
    /// Layout of x and dx, and that of y and dy.
    const onednn::Desc& src_layout() const { return src_; }
    const onednn::Desc& dst_layout() const { return dst_; }
    /// Enough for each of the passes.
    std::size_t scratch_bytes() const;

    /// y = x * w + bias, or where `relu` that or 0, whichever is larger; bias is read only when shape().bias.
    void forward(const float* x, const float* w, const float* bias, bool relu, float* y, void* scratch) const;
    /// Where x was made by ReLU, `made` may be x: dx is then 0 where x <= 0. Else null.
    void backward_data(const float* dy, const float* w, const float* made, float* dx, void* scratch) const;
    /// Overwrites dw and, when shape().bias, db.
    void backward_weights(const float* x, const float* dy, float* dw, float* db, void* scratch) const;

private:
    void make_winograd(Isa with);
    void make_direct(std::string_view layouts);

    ConvShape shape_;
    int threads_;
    ConvPath path_;
    onednn::Desc src_, dst_;
    std::optional<WinogradConv> winograd_;
    std::optional<FirstLayerGradient> first_layer_;
    std::optional<DirectConv> direct_;
};

}  // namespace lockstep::cpu
