// Layouts of the CPU backend: oneDNN's own, and what plain loops know of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/ops/cpu/onednn.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {

/// A whole tensor as oneDNN describes it.
struct OneDnnLayout final : OpaqueLayout {
    explicit OneDnnLayout(onednn::Desc d) : desc(std::move(d)) {}
    onednn::Desc desc;

    std::size_t bytes() const override { return desc.get_size(); }
    bool equals(const OpaqueLayout& other) const override;
    std::string str() const override;
    /// Of the arrangements that plain loops know.
    std::shared_ptr<const OpaqueLayout> with_dtype(DType dtype) const override;
};

/// A 4-D tensor as planes: (n, blocks, spatial, width), width channels beside each other, the last block's missing
/// channels being zero. Plain (N, C, H, W) has width 1.
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
/// The same, after asking for a row-major input where it is not.
Planes want_planes(KernelRequest& request, std::size_t input);

/// Whether `meta` lies as oneDNN's channels-last: (n, h, w, channels) in memory.
bool is_channels_last(const TensorMeta& meta);

/// Elements that lie one after another: of a row-major tensor, or of a blocked one with its padding.
std::int64_t dense_elements(const TensorMeta& meta);
/// Whether elementwise loops can run over the memory of `meta` from end to end. With `keeps_zero` false the function
/// would spoil the zeros that pad a blocked tensor, and such tensors are excluded.
bool is_dense(const TensorMeta& meta, bool keeps_zero = true);

/// Brings `meta`, of any dtype, to the arrangement of `like` (same number of channels): row-major, channels-last or the
/// same blocking.
void arrange_like(TensorMeta& meta, const TensorMeta& like);

/// Brings an f32 `meta` to a layout that a oneDNN primitive asked for; row-major where that is what it is.
void arrange(TensorMeta& meta, const onednn::Desc& desc);

/// A strided or opaque tensor of f32, f16, bf16, i32 or u8 as oneDNN describes it; its offset not included.
onednn::Desc desc_of(const TensorMeta& meta);

}  // namespace lockstep::cpu
