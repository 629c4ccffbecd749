// Adds a bias per channel to blocked images without reordering them.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "lockstep/ops/cpu/half_types.h"
#include "lockstep/ops/cpu/lane_loops.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {

/// Whether the request adds a number per channel to blocked images: (C, 1, 1) or (1, C, 1, 1).
template <class F>
bool adds_to_channels(const KernelRequest& request) {
    const TensorMeta &x = request.in[0], &bias = request.in[1];
    if (!std::is_same_v<F, functor::Add> || x.opaque == nullptr || !planes_of(x)) return false;
    const std::int64_t channels = x.shape[1];
    return bias.shape == Shape{channels, 1, 1} || bias.shape == Shape{1, channels, 1, 1};
}

/// y = x + bias, on blocked x; the zeros that pad its channels remain zeros.
template <class Stored>
std::unique_ptr<Kernel> make_channel_add_of(const Planes& planes, int threads) {
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
                          LaneLoops<Stored>::normalize(x + p * planes.plane(), none, one, shift, false,
                                                       y + p * planes.plane(), planes.plane());
                      }
                  });
    });
}

/// The kernel if adds_to_channels, for operands of one floating dtype.
template <class Op>
std::unique_ptr<Kernel> make_channel_add(const Op& operation, KernelRequest& request) {
    request.want_contiguous(1);
    set_layout_like(request.out[0], request.in[0]);
    return for_stored(operation, request.in[0].dtype, [&](auto stored) {
        return make_channel_add_of<decltype(stored)>(planes_of(request.in[0]).value(), request.threads);
    });
}

}  // namespace lockstep::cpu
