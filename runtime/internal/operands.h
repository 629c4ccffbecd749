// The tensors of a call: their common device, and the addresses of their elements.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "lockstep/runtime/record.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

// All tensors of one call must be on the same device.

class CommonDevice {
public:
    /// `called`: name of the call in messages.
    explicit CommonDevice(std::string_view called) : called_(called) {}
    /// Throws InvalidArgument if `tensor` is defined and on another device than the previous ones.
    void take(const Tensor& tensor);
    /// The host if there were no tensors.
    Device device() const { return device_.value_or(Device::host()); }

private:
    std::string_view called_;
    std::optional<Device> device_;
};

// Addresses of the first elements of operands and tensors.

/// Address of the operand's first element. Throws for a buffer of a trace.
inline void* first_element(const Operand& operand) {
    return static_cast<char*>(operand.buffer->data()) +
           static_cast<std::size_t>(operand.meta.offset) * size_of(operand.meta.dtype);
}
/// Address of the first element of a strided tensor.
inline void* first_element(const Tensor& tensor) {
    return static_cast<char*>(tensor.impl()->storage->buffer->data()) +
           static_cast<std::size_t>(tensor.impl()->meta.offset) * size_of(tensor.dtype());
}

/// Throws InvalidArgument for `call` (empty: unknown), which reads the value of a tensor of a traced forward: inside
/// the trace there is no value yet, outside there never is one.
[[noreturn]] void throw_without_value(std::string_view call, std::string_view what = "a tensor");

/// A leaf with new storage over `buffer`, in the layout `meta`.
Tensor tensor_over(std::shared_ptr<Buffer> buffer, const TensorMeta& meta);

// Conversion of opaque storage to strided storage, and elements that share memory.

/// Converts the storage of `tensor` to row-major order if it has a backend-specific layout. All aliases see the change;
/// values, version and autograd graph are unchanged.
void make_strided(const Tensor& tensor);

/// True if several elements share memory, as in an expanded view.
bool repeats_elements(const TensorMeta& meta);
/// Throws InvalidArgument, in the name of `what`, if that is true for a tensor to be written.
void require_single_elements(const Tensor& written, std::string_view what);

}  // namespace lockstep
