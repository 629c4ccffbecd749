// Images of any layout in the form that loops over positions process: planes of positions, and runs of contiguous
// channels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {

/// A tensor as planes of positions with runs of contiguous channels.
struct ChannelRuns {
    struct Run {
        std::int64_t first;  ///< first channel, within the plane
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
        // The last run may overlap the one before: their common channels are computed twice, with equal results.
        for (std::int64_t first = 0; first < pixel; first += width)
            runs.push_back({std::min(first, pixel - width), width == 16 ? 2U : width == 8 ? 1U : 0U});
    }

    /// Calls work(plane, run) for all of them, with planes in parallel.
    template <class Work>
    void for_all(int threads, std::int64_t positions, const Work& work) const {
        for_parts(worthwhile_threads(threads, planes * positions * pixel), planes, 1,
                  [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t plane = begin; plane < end; ++plane)
                          for (const Run& run : runs) work(plane, run);
                  });
    }
};

/// The runs of input `input`: plain, blocked or channels-last; asks for row-major if it has another layout.
inline ChannelRuns want_channel_runs(KernelRequest& request, std::size_t input) {
    if (!is_channels_last(request.in[input])) want_planes(request, input);
    return ChannelRuns(request.in[input]);
}

}  // namespace lockstep::cpu
