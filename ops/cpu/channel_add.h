// A bias per channel on blocked images, where they lie.
#pragma once

#include <memory>

#include "lockstep/ops/cpu/lane_loops.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {

/// Whether `bias` has one number for each channel of images of `shape`: (C, 1, 1) or (1, C, 1, 1).
inline bool is_channel_bias(const TensorMeta& bias, const Shape& shape) {
    return shape.dims() == 4 && (bias.shape == Shape{shape[1], 1, 1} || bias.shape == Shape{1, shape[1], 1, 1});
}

/// y = x + bias, on blocked x; the zeros that pad its channels stay zeros.
template <class Stored>
std::unique_ptr<Kernel> make_channel_add(const Planes& planes, int threads) {
    using T = Arithmetic<Stored>;
    return make_kernel([planes, threads](const KernelArgs& call) {
        const auto *x = call.input<Stored>(0), *bias = call.input<Stored>(1);
        auto* y = call.output<Stored>(0);
        for_parts(worthwhile_threads(threads, planes.elements()), planes.count(), 1,
                  [&](std::int64_t begin, std::int64_t end) {
                      T none[lanes] = {}, one[lanes], shift[lanes];
                      for (T& value : one) value = T(1);
                      for (std::int64_t p = begin; p < end; ++p) {
                          const std::int64_t first = p % planes.blocks * planes.width;
                          for (int j = 0; j < lanes; ++j) {
                              const std::int64_t channel = first + j % planes.width;
                              shift[j] = channel < planes.channels ? static_cast<T>(bias[channel]) : T(0);
                          }
                          // (x - 0) * 1 + bias is exactly x + bias.
                          LaneLoops<Stored>::normalize(x + p * planes.plane(), none, one, shift, y + p * planes.plane(),
                                                       planes.plane());
                      }
                  });
    });
}

}  // namespace lockstep::cpu
