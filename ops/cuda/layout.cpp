#include "lockstep/ops/cuda/layout.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "lockstep/ops/cuda/index.h"

namespace lockstep::cuda {

// ---- layouts ----------------------------------------------------------------------------------------------------

Shape channels_last_strides(const Shape& shape) {
    const std::int64_t c = shape[1], h = shape[2], w = shape[3];
    return {h * w * c, 1, w * c, c};
}

bool is_channels_last(const TensorMeta& meta) {
    if (meta.opaque || meta.shape.dims() != 4) return false;
    TensorMeta wanted = meta;
    wanted.strides = channels_last_strides(meta.shape);
    return meta.same_layout(wanted);
}

bool is_dense(const TensorMeta& meta) {
    if (meta.opaque) return false;
    std::vector<int> order;
    for (int d = 0; d < meta.shape.dims(); ++d)
        if (meta.shape[d] != 1) order.push_back(d);
    std::sort(order.begin(), order.end(), [&](int a, int b) { return meta.strides[a] < meta.strides[b]; });
    std::int64_t expected = 1;
    for (const int d : order) {
        if (meta.strides[d] != expected) return false;
        expected *= meta.shape[d];
    }
    return true;
}

void set_layout_like(TensorMeta& fresh, const TensorMeta& model) {
    fresh.strides = is_dense(model) ? model.strides : fresh.shape.contiguous_strides();
    fresh.offset = 0;
}

void set_channels_last(TensorMeta& meta) {
    meta.opaque = nullptr;
    meta.strides = channels_last_strides(meta.shape);
    meta.offset = 0;
}

Images images_of(const TensorMeta& meta) {
    // If both names apply (one channel, one pixel), either is correct.
    return {meta.shape[0], meta.shape[1], meta.shape[2], meta.shape[3], !meta.is_contiguous()};
}

Images want_images(KernelRequest& request, std::size_t i) {
    if (!is_channels_last(request.in[i])) request.want_contiguous(i);
    return images_of(request.in[i]);
}

void want_channels_last(KernelRequest& request, std::size_t i) {
    if (!is_channels_last(request.in[i])) set_channels_last(request.in[i]);
}

void want_like(KernelRequest& request, std::size_t i, const TensorMeta& model) {
    TensorMeta wanted = request.in[i];
    wanted.opaque = nullptr;
    wanted.strides = model.strides;
    wanted.offset = 0;
    if (!request.in[i].same_layout(wanted)) request.in[i] = wanted;
}

// ---- walks ------------------------------------------------------------------------------------------------------

Shape broadcast_strides(const TensorMeta& meta, const Shape& shape) {
    Shape strides;
    const int missing = shape.dims() - meta.shape.dims();
    for (int d = 0; d < shape.dims(); ++d)
        strides.push_back(d < missing || (meta.shape[d - missing] == 1 && shape[d] != 1) ? 0
                                                                                         : meta.strides[d - missing]);
    return strides;
}

Walk make_walk(const Shape& shape, std::initializer_list<Shape> strides, Order order) {
    const Shape& first = *strides.begin();
    std::array<int, Shape::max_dims> dims{};
    std::size_t count = 0;
    for (int d = 0; d < shape.dims(); ++d) {
        if (shape[d] == 1) continue;
        std::size_t place = count++;
        for (; order == Order::memory && place > 0 && first[dims[place - 1]] < first[d]; --place)
            dims[place] = dims[place - 1];
        dims[place] = d;
    }
    Walk walk;
    for (const int d : std::span(dims.data(), count)) {
        const int last = walk.sizes.dims() - 1;
        bool joins = last >= 0;
        int t = 0;
        for (const Shape& each : strides) joins = joins && walk.strides[t++][last] == each[d] * shape[d];
        if (joins)
            walk.sizes[last] *= shape[d];
        else
            walk.sizes.push_back(shape[d]);
        t = 0;
        for (const Shape& each : strides) {
            if (joins)
                walk.strides[t++][last] = each[d];
            else
                walk.strides[t++].push_back(each[d]);
        }
    }
    return walk;
}

}  // namespace lockstep::cuda
