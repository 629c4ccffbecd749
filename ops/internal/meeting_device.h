// Where the tensors of a loss meet.
#pragma once

#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Tensors on the host that meet others in a loss go to the device of those, as a wrapper's inputs do.
class MeetingDevice {
public:
    MeetingDevice(const Tensor& a, const Tensor& b) {
        for (const Tensor* tensor : {&a, &b})
            if (tensor->defined() && device_.is_host()) device_ = tensor->device();
    }
    Tensor bring(const Tensor& tensor) const {
        const bool comes = tensor.defined() && tensor.device().is_host() && !device_.is_host();
        return comes ? tensor.to(device_) : tensor;
    }

private:
    Device device_ = Device::host();
};

}  // namespace lockstep
