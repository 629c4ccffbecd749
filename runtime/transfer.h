// Tensors on their way from one device to another, while both go on with other work.
#pragma once

#include <memory>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// A tensor that goes to another device. Tensor::to(device) lets the device wait for it there and then; this lets it
/// wait where the tensor is taken. So a device that is given the next micro-batch early, which the one before it still
/// works on, does not stand still for it:
///
///     ls::Transfer next(encoder(part[i + 1]), second);  // `first` computes, then a stream of its own copies
///     decoder(now.tensor());                            // meanwhile `second` works on what has arrived
///
/// The copy begins when what makes the tensor and what `device` was given before are done; the tensor's own device goes
/// on after it. The host waits only for tensors that lie on it or go to it. Differentiable: the gradient goes back by
/// one copy. A layout that only devices of such hardware know stays as it is between two of them.
class Transfer {
public:
    /// Begins. Throws InvalidArgument for a device that is not visible, and inside forward as Tensor::to does.
    Transfer(const Tensor& tensor, Device device);
    ~Transfer();
    Transfer(Transfer&&) noexcept;
    Transfer& operator=(Transfer&&) noexcept;

    /// The tensor there; the one that was given where it was there already. What its device is given from now on waits
    /// for the copy.
    const Tensor& tensor() const;

private:
    struct Copy;
    Tensor tensor_;
    std::unique_ptr<Copy> copy_;  ///< null: nothing is under way
};

}  // namespace lockstep
