// Images in whatever layout they lie, as loops over positions take them: planes, and channels that lie beside each
// other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {

/// How a tensor is given to the loops: planes of positions, and runs of channels that lie beside each other in them.
struct ChannelRuns {
    struct Run {
        std::int64_t first;  ///< channel of the plane
        std::size_t width;   ///< index into the tables of loops
    };
    std::int64_t planes, pixel;
    std::vector<Run> runs;

    explicit ChannelRuns(const TensorMeta& meta) {
        if (const auto blocked = planes_of(meta)) {
            planes = blocked->count();
            pixel = blocked->width;
            runs = {{0, blocked->width_index()}};
            return;
        }
        planes = meta.shape[0];
        pixel = meta.shape[1];
        const std::int64_t width = pixel >= 16 ? 16 : pixel >= 8 ? 8 : 1;
        // The last run may begin within the one before it: their common channels come out the same twice.
        for (std::int64_t first = 0; first < pixel; first += width)
            runs.push_back({std::min(first, pixel - width), width == 16 ? 2U : width == 8 ? 1U : 0U});
    }

    /// work(plane, run) for all of them, planes in parallel.
    template <class Work>
    void for_all(int threads, std::int64_t positions, const Work& work) const {
        for_parts(worthwhile_threads(threads, planes * positions * pixel), planes, 1,
                  [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t plane = begin; plane < end; ++plane)
                          for (const Run& run : runs) work(plane, run);
                  });
    }
};

/// Those of input `input`: plain, blocked or channels-last; of any other layout it is asked for row-major.
inline ChannelRuns want_channel_runs(KernelRequest& request, std::size_t input) {
    if (!is_channels_last(request.in[input])) want_planes(request, input);
    return ChannelRuns(request.in[input]);
}

}  // namespace lockstep::cpu
