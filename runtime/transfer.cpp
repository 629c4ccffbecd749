#include "lockstep/runtime/transfer.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/backend.h"
#include "lockstep/runtime/internal/eager.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/moved_from.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

/// A copy, and whether its target device waits for it already.
struct Transfer::Copy {
    Copy(Device target, Device copying) : to(Stream::of(target)), arrived(copying) {}
    Stream& to;
    Event arrived;
    bool awaited = false;
};

namespace {

/// The stream of copies between two devices: while it waits for one of them, both continue with other work. CPU devices
/// cannot read the memory of a GPU, which therefore makes all copies from and to it.
Stream& lane(Device from, Device to) {
    const bool by_source = from.kind() == DeviceKind::cuda && to.kind() != DeviceKind::cuda;
    const Device copying = by_source ? from : to, other = by_source ? to : from;
    return Stream::of(copying, StreamRole::input, other.is_host() ? 1 : 2 + other.index());
}

/// Whether `to` supports a layout created by the backend of `from`.
bool same_hardware(Device from, Device to) {
    return from.kind() == to.kind() && !from.is_host() && !to.is_host() &&
           backend_of(from).hardware(from.index()) == backend_of(to).hardware(to.index());
}

/// A tensor on `device` with the layout of `source`, without its values.
Tensor empty_like(const Tensor& source, Device device) {
    TensorMeta meta = TensorMeta::contiguous(source.dtype(), source.shape(), source.is_batch());
    meta.opaque = source.impl()->storage->opaque;
    return tensor_over(Buffer::allocate(Stream::of(device), meta.bytes(), "tensors"), meta);
}

/// Row-major, or in its current layout if `device` supports that.
Tensor to_be_copied(const Tensor& source, Device device) {
    if (source.impl()->storage->opaque && same_hardware(source.device(), device)) return source.detach();
    return source.contiguous().detach();
}

Tensor moved_to_host(const Tensor& source) {
    const Tensor result = empty_like(source, Device::host());
    Stream& stream = Stream::of(source.device());
    stream.copy(first_element(result), Device::host(), first_element(source), source.device(),
                result.impl()->storage->buffer->bytes());
    stream.synchronize();
    eager_reports::check(source.impl()->storage->reports);
    return result;
}

/// Copies `source` to `device`; `arrived` is reached when the copy is complete.
Tensor moved(const Tensor& source, Device device, Event& arrived) {
    const Tensor result = empty_like(source, device);
    result.impl()->storage->reports = source.impl()->storage->reports;
    Stream &from = Stream::of(source.device()), &to = Stream::of(device), &between = lane(source.device(), device);
    between.wait(from);
    between.wait(to);  // the memory may have had another user
    between.copy(first_element(result), device, first_element(source), source.device(),
                 result.impl()->storage->buffer->bytes());
    between.record(arrived);
    from.wait(arrived);  // for later writes to the source and reuse of its memory
    source.impl()->storage->buffer->used_on(from);
    // The caller may write pageable host memory as soon as this returns.
    if (source.device().is_host()) between.synchronize();
    return result;
}

}  // namespace

Transfer::Transfer(const Tensor& tensor, Device device) {
    const ApiScope call("to(device)");
    tensor_ = tensor;
    if (tensor.device() == device) return;
    if (Trace::current()) {
        if (tensor.is_symbolic())
            throw InvalidArgument(
                "to(device) inside forward: tensors of forward are on their shard's device; expected no transfers "
                "there");
        return;  // constants are copied to every device by the program
    }
    if (tensor.is_symbolic())
        throw_without_value(ApiScope::name(), fmt::format("a tensor of shape {}", tensor.shape().str()));
    const Tensor source = to_be_copied(tensor, device);
    if (device.is_host()) {
        tensor_ = moved_to_host(source);
    } else {
        require_visible(device);
        copy_ = std::make_unique<Copy>(device, lane(source.device(), device).device());
        tensor_ = moved(source, device, copy_->arrived);
    }
    if (needs_autograd({tensor}))
        add_autograd_node("to(device)", {tensor}, {tensor_},
                          BackwardFunction::composed([origin = tensor.device()](const auto& gradients) {
                              return std::vector<Tensor>{gradients[0].to(origin)};
                          }));
}

Transfer::~Transfer() {
    try {
        tensor();    // an unused copy is freed in the device's order, after the copy
    } catch (...) {  // a destructor must not throw; the stream reports the failure
    }
}
Transfer::Transfer(Transfer&&) noexcept = default;
Transfer& Transfer::operator=(Transfer&& other) noexcept {
    std::swap(tensor_, other.tensor_);
    std::swap(copy_, other.copy_);
    return *this;
}

const Tensor& Transfer::tensor() const {
    if (!tensor_.defined()) detail::refuse_moved_from("Transfer");
    if (copy_ && !std::exchange(copy_->awaited, true)) copy_->to.wait(copy_->arrived);
    return tensor_;
}

Tensor Tensor::to(Device target) const { return Transfer(*this, target).tensor(); }

}  // namespace lockstep
