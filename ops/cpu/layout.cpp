#include "lockstep/ops/cpu/layout.h"

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::cpu {
namespace {

using Tag = dnnl::memory::format_tag;

onednn::Dims dims_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

dnnl::memory::data_type type_of(DType dtype) {
    switch (dtype) {
        case DType::f32: return dnnl::memory::data_type::f32;
        case DType::f16: return dnnl::memory::data_type::f16;
        case DType::bf16: return dnnl::memory::data_type::bf16;
        case DType::i32: return dnnl::memory::data_type::s32;
        case DType::u8: return dnnl::memory::data_type::u8;
        default: break;
    }
    throw InvalidArgument("unsupported dtype of a oneDNN layout (" + std::string(name_of(dtype)) +
                          "); expected f32, f16, bf16, i32 or u8");
}

/// The arrangement of `desc` among those that plain loops support; `any` for others.
Tag arrangement(const onednn::Desc& desc) {
    const onednn::Dims sizes = onednn::dims(desc);
    if (sizes.size() != 4) return Tag::any;
    for (const Tag tag : {Tag::nChw16c, Tag::nChw8c, Tag::nhwc})
        if (desc == onednn::Desc(sizes, onednn::data_type(desc), tag)) return tag;
    return Tag::any;
}

Tag arrangement(const TensorMeta& meta) {
    const auto* layout = dynamic_cast<const OneDnnLayout*>(meta.opaque.get());
    return layout != nullptr ? arrangement(layout->desc) : Tag::any;
}

/// Channels in a block; 0 if there are no blocks.
int block_width(Tag tag) { return tag == Tag::nChw16c ? 16 : tag == Tag::nChw8c ? 8 : 0; }

}  // namespace

bool OneDnnLayout::equals(const OpaqueLayout& other) const {
    const auto* layout = dynamic_cast<const OneDnnLayout*>(&other);
    return layout != nullptr && layout->desc == desc;
}

std::string OneDnnLayout::str() const {
    const Tag tag = arrangement(desc);
    if (tag == Tag::nhwc) return "nhwc";
    return tag != Tag::any ? "nChw" + std::to_string(block_width(tag)) + "c" : "oneDNN " + onednn::describe(desc);
}

std::shared_ptr<const OpaqueLayout> OneDnnLayout::with_dtype(DType dtype) const {
    const Tag tag = arrangement(desc);
    if (tag == Tag::any) return nullptr;
    return std::make_shared<const OneDnnLayout>(onednn::Desc(onednn::dims(desc), type_of(dtype), tag));
}

std::optional<Planes> planes_of(const TensorMeta& meta) {
    if (meta.shape.dims() != 4) return std::nullopt;
    Planes planes{meta.shape[0], meta.shape[1], meta.shape[2], meta.shape[3], meta.shape[1], 1};
    if (meta.opaque != nullptr) {
        planes.width = block_width(arrangement(meta));
        if (planes.width == 0) return std::nullopt;
        planes.blocks = ceil_div(planes.channels, planes.width);
    } else if (!meta.is_contiguous()) {
        return std::nullopt;
    }
    return planes;
}

Planes want_planes(KernelRequest& request, std::size_t input) {
    if (!planes_of(request.in[input])) request.want_contiguous(input);
    return planes_of(request.in[input]).value();
}

bool is_channels_last(const TensorMeta& meta) { return arrangement(meta) == Tag::nhwc; }

std::int64_t dense_elements(const TensorMeta& meta) {
    const auto planes = meta.opaque != nullptr ? planes_of(meta) : std::nullopt;
    return planes ? planes->elements() : meta.numel();
}

bool is_dense(const TensorMeta& meta, bool keeps_zero) {
    if (meta.opaque == nullptr) return meta.is_contiguous();
    if (is_channels_last(meta)) return true;
    const auto planes = planes_of(meta);
    return planes && (keeps_zero || !planes->padded());
}

void set_layout_like(TensorMeta& meta, const TensorMeta& like) {
    if (like.opaque == nullptr) {
        if (!meta.is_contiguous() || meta.opaque != nullptr)
            meta = TensorMeta::contiguous(meta.dtype, meta.shape, meta.batch);
        return;
    }
    auto layout =
        std::make_shared<const OneDnnLayout>(onednn::Desc(dims_of(meta.shape), type_of(meta.dtype), arrangement(like)));
    if (meta.opaque != nullptr && meta.opaque->equals(*layout)) return;
    meta = TensorMeta::contiguous(meta.dtype, meta.shape, meta.batch);
    meta.opaque = std::move(layout);
}

void arrange(TensorMeta& meta, const onednn::Desc& desc) {
    TensorMeta wanted = TensorMeta::contiguous(meta.dtype, meta.shape, meta.batch);
    if (desc == desc_of(wanted)) {
        if (meta.opaque != nullptr || !meta.is_contiguous()) meta = std::move(wanted);
        return;
    }
    auto layout = std::make_shared<const OneDnnLayout>(desc);
    if (meta.opaque != nullptr && meta.opaque->equals(*layout)) return;
    wanted.opaque = std::move(layout);
    meta = std::move(wanted);
}

onednn::Desc desc_of(const TensorMeta& meta) {
    if (meta.opaque != nullptr) {
        const auto* layout = dynamic_cast<const OneDnnLayout*>(meta.opaque.get());
        if (layout == nullptr)
            throw InvalidArgument("unknown layout on the CPU: " + meta.str() +
                                  "; expected a contiguous tensor or a oneDNN layout");
        return layout->desc;
    }
    if (meta.shape.empty()) return {{1}, type_of(meta.dtype), onednn::Dims{1}};
    return {dims_of(meta.shape), type_of(meta.dtype), dims_of(meta.strides)};
}

}  // namespace lockstep::cpu
