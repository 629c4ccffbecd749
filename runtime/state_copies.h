// What steps change, copied to the host between two of them, while later ones are enqueued.
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

/// Bytes of a device on their way to the host.
struct StateCopy {
    void* to = nullptr;  ///< pinned memory (Buffer::allocate_pinned)
    const void* from = nullptr;
    Device device;
    std::size_t bytes = 0;
};

/// What steps change, at one point between two of them.
struct StateCopies {
    explicit StateCopies(Device first) : done(first) {}
    StateCopies(const StateCopies&) = delete;
    StateCopies& operator=(const StateCopies&) = delete;

    std::vector<StateCopy> members;  ///< parameters and buffers, of the first device
    std::vector<StateCopy> others;   ///< the state of optimizers
    Event done;                      ///< when all is there
    /// Whether all steps so far have counted, once `done`: otherwise the copies are not what they should be.
    bool good() const {
        const auto& found = *static_cast<const Outcome*>(outcome->data());
        const bool counts =
            found.status.code == 0 || found.status.code == static_cast<std::int32_t>(StatusCode::skipped);
        return counts && !found.kernels_failed;
    }

    struct Outcome {
        StatusWord status{.code = static_cast<std::int32_t>(StatusCode::operation_failed)};
        bool kernels_failed = true;
    };
    /// Pinned memory with an Outcome.
    std::shared_ptr<Buffer> outcome = Buffer::allocate_pinned(sizeof(Outcome));
};

}  // namespace lockstep
