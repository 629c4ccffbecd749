// Training state copied to the host between two steps, while later ones are enqueued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/status.h"
#include "lockstep/runtime/stream.h"

namespace lockstep {

/// A copy from a device to the host.
struct StateCopy {
    void* to = nullptr;  ///< pinned memory (Buffer::allocate_pinned)
    const void* from = nullptr;
    Device device;
    std::size_t bytes = 0;
};

/// Training state at one point between two steps.
struct StateCopies {
    explicit StateCopies(Device first) : done(first) {}
    StateCopies(const StateCopies&) = delete;
    StateCopies& operator=(const StateCopies&) = delete;

    std::vector<StateCopy> members;  ///< parameters and buffers of the first device
    std::vector<StateCopy> others;   ///< state of optimizers
    Event done;                      ///< recorded after all copies
    /// Whether all steps so far have counted, once `done`; otherwise the copies must not be used.
    bool good() const {
        const auto& found = *static_cast<const Outcome*>(outcome->data());
        const bool counts =
            found.status.code == 0 || found.status.code == static_cast<std::int32_t>(StatusCode::skipped);
        return counts && !found.kernels_failed;
    }

    /// Status of the step, and whether its kernels failed.
    struct Outcome {
        StatusWord status{.code = static_cast<std::int32_t>(StatusCode::operation_failed)};
        bool kernels_failed = true;
    };
    /// Pinned memory with an Outcome.
    std::shared_ptr<Buffer> outcome = Buffer::allocate_pinned(sizeof(Outcome));
};

}  // namespace lockstep
