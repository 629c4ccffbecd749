// Elements of images in either of the two layouts that kernels take, by number and by position.
#pragma once

#include "lockstep/ops/cuda/layout.h"
#include "lockstep/runtime/element.h"

namespace lockstep::cuda {

struct ImageIndex {
    Images images;

    struct Position {
        std::int64_t n, c, h, w;
    };
    /// Position of the i-th element in memory.
    LOCKSTEP_ELEMENT Position position(std::int64_t i) const {
        if (images.channels_last) {
            const std::int64_t pixel = i / images.c;
            const std::int64_t row = pixel / images.w;
            return {row / images.h, i % images.c, row % images.h, pixel % images.w};
        }
        const std::int64_t row = i / images.w;
        const std::int64_t plane = row / images.h;
        return {plane / images.c, plane % images.c, row % images.h, i % images.w};
    }
    LOCKSTEP_ELEMENT std::int64_t of(const Position& p, std::int64_t h, std::int64_t w) const {
        if (images.channels_last) return ((p.n * images.h + h) * images.w + w) * images.c + p.c;
        return ((p.n * images.c + p.c) * images.h + h) * images.w + w;
    }
};

}  // namespace lockstep::cuda
