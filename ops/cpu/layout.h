// Layouts of the CPU backend: oneDNN's, and their representation for plain loops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/ops/cpu/onednn.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {

/// A whole tensor as described by oneDNN.
struct OneDnnLayout final : OpaqueLayout {
    explicit OneDnnLayout(onednn::Desc d) : desc(std::move(d)) {}
    onednn::Desc desc;

    std::size_t bytes() const override { return desc.get_size(); }
    bool equals(const OpaqueLayout& other) const override;
    std::string str() const override;
    /// The arrangement among those that plain loops support.
    std::shared_ptr<const OpaqueLayout> with_dtype(DType dtype) const override;
};

/// A 4-D tensor as planes: (n, blocks, spatial, width) with `width` adjacent channels; missing channels of the last
/// block are zero. Plain (N, C, H, W) has width 1.
struct Planes {
    std::int64_t n = 0, channels = 0, h = 0, w = 0;
    std::int64_t blocks = 0;
    int width = 1;

    std::int64_t spatial() const { return h * w; }
    std::int64_t count() const { return n * blocks; }
    std::int64_t plane() const { return spatial() * width; }  ///< elements of one plane
    std::int64_t elements() const { return count() * plane(); }
    bool padded() const { return blocks * width != channels; }
    /// 0, 1, 2 for width 1, 8, 16: the index into tables of loops.
    std::size_t width_index() const { return width == 1 ? 0 : width == 8 ? 1 : 2; }
};

/// `meta` as planes if it is 4-D and row-major or blocked over channels by 8 or 16.
std::optional<Planes> planes_of(const TensorMeta& meta);
/// The same, after asking for a row-major input if it has another layout.
Planes want_planes(KernelRequest& request, std::size_t input);

/// Whether `meta` has oneDNN's channels-last layout: (n, h, w, channels) in memory.
bool is_channels_last(const TensorMeta& meta);

/// Number of consecutive elements: those of a row-major tensor, or of a blocked one including its padding.
std::int64_t dense_elements(const TensorMeta& meta);
/// Whether elementwise loops can process the memory of `meta` as one run. If `keeps_zero` is false, the function would
/// change the zeros that pad a blocked tensor; such tensors are excluded.
bool is_dense(const TensorMeta& meta, bool keeps_zero = true);

/// Gives `meta`, of any dtype, the arrangement of `like` (same number of channels): row-major, channels-last or the
/// same blocking.
void set_layout_like(TensorMeta& meta, const TensorMeta& like);

/// Gives an f32 `meta` the layout that a oneDNN primitive asked for; row-major if it is that one.
void arrange(TensorMeta& meta, const onednn::Desc& desc);

/// A strided or opaque tensor of f32, f16, bf16, i32 or u8 as oneDNN describes it, without its offset.
onednn::Desc desc_of(const TensorMeta& meta);

}  // namespace lockstep::cpu
