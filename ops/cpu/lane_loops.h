// The loops with a factor or a sum per lane (loops.h), for runs of any floating type.
#pragma once

#include <cstddef>

#include "lockstep/ops/cpu/half_types.h"
#include "lockstep/ops/cpu/loops.h"

namespace lockstep::cpu {

/// x, dy, y and dx are runs of n Stored elements; factors and sums are arrays of `lanes`.
template <class Stored>
struct LaneLoops {
    using T = Arithmetic<Stored>;
    using Index = std::ptrdiff_t;

    static void sum(const Stored* x, Index n, double* sums) {
        if constexpr (!is_half<Stored>) return loops<T>().lane_sum(x, n, sums);
        for_runs(n, [&](Index first, Index count) {
            T buffer[run_elements];
            loops<T>().lane_sum(wide(x + first, count, buffer), count, sums);
        });
    }
    static void deviation(const Stored* x, const T* mean, Index n, double* sums) {
        if constexpr (!is_half<Stored>) return loops<T>().lane_deviation(x, mean, n, sums);
        for_runs(n, [&](Index first, Index count) {
            T buffer[run_elements];
            loops<T>().lane_deviation(wide(x + first, count, buffer), mean, count, sums);
        });
    }
    /// With `relu`: ReLU of the results.
    static void normalize(const Stored* x, const T* mean, const T* scale, const T* bias, bool relu, Stored* y,
                          Index n) {
        if constexpr (is_half<Stored>) {
            for_runs(n, [&](Index first, Index count) {
                T buffer[run_elements];
                loops<T>().lane_normalize(wide(x + first, count, buffer), mean, scale, bias, buffer, count);
                float16::downcast(buffer, y + first, count);
                if (relu) relu_of_half(y + first, count);
            });
        } else {
            (relu ? loops<T>().lane_normalize_relu : loops<T>().lane_normalize)(x, mean, scale, bias, y, n);
        }
    }
    static void backward_sums(const Stored* x, const Stored* dy, const T* mean, Index n, double* sums_dy,
                              double* sums_product) {
        if constexpr (!is_half<Stored>) return loops<T>().lane_backward_sums(x, dy, mean, n, sums_dy, sums_product);
        for_runs(n, [&](Index first, Index count) {
            T buffer[run_elements], buffer_dy[run_elements];
            loops<T>().lane_backward_sums(wide(x + first, count, buffer), wide(dy + first, count, buffer_dy), mean,
                                          count, sums_dy, sums_product);
        });
    }
    static void backward_data(const Stored* x, const Stored* dy, const T* mean, const T* scale, const T* mean_dy,
                              const T* slope, Stored* dx, Index n) {
        if constexpr (is_half<Stored>) {
            for_runs(n, [&](Index first, Index count) {
                T buffer[run_elements], buffer_dy[run_elements];
                loops<T>().lane_backward_data(wide(x + first, count, buffer), wide(dy + first, count, buffer_dy), mean,
                                              scale, mean_dy, slope, buffer, count);
                float16::downcast(buffer, dx + first, count);
            });
        } else {
            loops<T>().lane_backward_data(x, dy, mean, scale, mean_dy, slope, dx, n);
        }
    }
};

}  // namespace lockstep::cpu
