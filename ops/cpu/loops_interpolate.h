// Interpolation loops of loops.h; see loops_kernels.h.
#pragma once

#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/loops_pooling.h"

#ifndef LOCKSTEP_LOOPS
#error "included only by the sources that are compiled for one instruction set"
#endif

namespace lockstep::cpu::LOCKSTEP_LOOPS {

template <class T, int V>
void interpolate(const InterpolatePlanes<T>& g, const T* x, T* y) {
    using Values = typename Pack<T, V>::Values;
    const Index row = g.w * g.pixel;
    for (Index oh = 0; oh < g.out_h; ++oh) {
        const auto& vertical = g.rows[oh];
        const T *upper = x + vertical.first * row, *lower = x + vertical.second * row;
        const T below = vertical.share, above = T(1) - below;
        for (Index ow = 0; ow < g.out_w; ++ow, y += g.pixel) {
            const auto& horizontal = g.columns[ow];
            const Index first = horizontal.first * g.pixel, second = horizontal.second * g.pixel;
            if (g.nearest) {
                write(y, pack<T, V>(upper + first));
                continue;
            }
            const T right = horizontal.share, left = T(1) - right;
            write(y, Values(above * (left * pack<T, V>(upper + first) + right * pack<T, V>(upper + second)) +
                            below * (left * pack<T, V>(lower + first) + right * pack<T, V>(lower + second))));
        }
    }
}

template <class T, int V>
void interpolate_backward(const InterpolatePlanes<T>& g, const T* dy, T* dx) {
    using Values = typename Pack<T, V>::Values;
    const Index row = g.w * g.pixel;
    for (Index i = 0; i < g.h * g.w; ++i) write(dx + i * g.pixel, Values{});
    for (Index oh = 0; oh < g.out_h; ++oh) {
        const auto& vertical = g.rows[oh];
        T *upper = dx + vertical.first * row, *lower = dx + vertical.second * row;
        const T below = vertical.share, above = T(1) - below;
        for (Index ow = 0; ow < g.out_w; ++ow, dy += g.pixel) {
            const auto& horizontal = g.columns[ow];
            const Index first = horizontal.first * g.pixel, second = horizontal.second * g.pixel;
            const Values gradient = pack<T, V>(dy);
            if (g.nearest) {
                write(upper + first, Values(pack<T, V>(upper + first) + gradient));
                continue;
            }
            const T right = horizontal.share, left = T(1) - right;
            const Values to_upper = above * gradient, to_lower = below * gradient;
            write(upper + first, Values(pack<T, V>(upper + first) + left * to_upper));
            write(upper + second, Values(pack<T, V>(upper + second) + right * to_upper));
            write(lower + first, Values(pack<T, V>(lower + first) + left * to_lower));
            write(lower + second, Values(pack<T, V>(lower + second) + right * to_lower));
        }
    }
}

}  // namespace lockstep::cpu::LOCKSTEP_LOOPS
