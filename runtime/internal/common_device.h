// Tensors that meet in one call lie on one device.
#pragma once

#include <optional>
#include <string_view>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

class CommonDevice {
public:
    /// `called`: what messages name.
    explicit CommonDevice(std::string_view called) : called_(called) {}
    /// Throws InvalidArgument where `tensor` is defined and lies elsewhere than those before it.
    void take(const Tensor& tensor);
    /// The host where there was no tensor.
    Device device() const { return device_.value_or(Device::host()); }

private:
    std::string_view called_;
    std::optional<Device> device_;
};

}  // namespace lockstep
