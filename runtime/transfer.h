// Asynchronous copies of tensors between devices, while both continue with other work.
#pragma once

#include <memory>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// A tensor in transfer to another device. Tensor::to(device) makes the device wait at once; a Transfer makes it wait
/// when the tensor is used. Enqueue the next microbatch before the previous device has finished it, and the copy
/// overlaps with computation:
///
///     ls::Transfer next(encoder(part[i + 1]), second);  // `first` computes, then a separate stream copies
///     decoder(now.tensor());                            // meanwhile `second` works on what has arrived
///
/// The copy begins after the work that computes the tensor and the work given to `device` before; the tensor's device
/// continues after it. The host waits only for tensors that are on the host or copied to it. Differentiable: the
/// gradient is copied back once. Backend-specific layouts are preserved between devices of the same hardware.
class Transfer {
public:
    /// Begins the copy. Throws InvalidArgument for a device that is not visible, and inside forward as Tensor::to does.
    Transfer(const Tensor& tensor, Device device);
    ~Transfer();
    Transfer(Transfer&&) noexcept;
    Transfer& operator=(Transfer&&) noexcept;

    /// The tensor on the device; the original tensor if it was already there. Work given to the device from now on
    /// waits for the copy.
    const Tensor& tensor() const;

private:
    struct Copy;
    Tensor tensor_;
    std::unique_ptr<Copy> copy_;  ///< null: no copy is in flight
};

}  // namespace lockstep
