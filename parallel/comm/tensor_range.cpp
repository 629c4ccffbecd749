#include "lockstep/parallel/comm/tensor_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/strided.h"
#include "lockstep/runtime/tape.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

bool intersect(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
    return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

void require_movable(std::string_view operation, const Tensor& tensor, bool written) {
    if (!tensor.defined()) throw InvalidArgument(fmt::format("{}: a tensor is undefined; make it first", operation));
    if (Trace::current() || tensor.is_symbolic())
        throw InvalidArgument(
            fmt::format("{}: ranks cannot talk while forward is traced; do it before or behind the step", operation));
    if (!tensor.device().is_host() && tensor.device().kind() == DeviceKind::cuda)
        throw InvalidArgument(
            fmt::format("{}: the tensor is on {}, and the group moves host memory; give it a copy, "
                        ".to(Device::host()), and copy_ the result back",
                        operation, tensor.device().str()));
    if (written && grad_enabled() && tensor.requires_grad())
        throw InvalidArgument(
            fmt::format("{}: writes a tensor that the tape follows; write it inside a NoGrad scope", operation));
    if (written) require_single_elements(tensor, operation);
}

}  // namespace

TensorRange::TensorRange(std::string_view operation, std::span<const Tensor> tensors, Use use) : use_(use) {
    for (const Tensor& tensor : tensors) require_movable(operation, tensor, use != Use::read);
    for (const Tensor& tensor : tensors) add(operation, tensor);
    copied_ = parts_.size() > 1 || (parts_.size() == 1 && !parts_[0].meta.is_contiguous());
    if (use == Use::read) return;
    for (const Tensor& tensor : tensors) tensor.impl()->storage->count_write();
}

void TensorRange::add(std::string_view operation, const Tensor& tensor) {
    make_strided(tensor);
    const TensorImpl& impl = *tensor.impl();
    Part part{impl.storage->buffer, impl.meta, nullptr,
              static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype())};
    if (part.bytes > 0)
        part.first = static_cast<std::byte*>(part.buffer->data()) +
                     static_cast<std::size_t>(part.meta.offset) * size_of(part.meta.dtype);
    for (const Part& other : parts_) {
        const bool known = part.meta.is_contiguous() && other.meta.is_contiguous();
        if (use_ != Use::read && part.bytes > 0 &&
            (known ? intersect(part.first, part.bytes, other.first, other.bytes) : part.first == other.first))
            throw InvalidArgument(
                fmt::format("{}: two of the tensors that it writes share memory; clone() one of them", operation));
    }
    if (!tensor.device().is_host()) {
        ready_.emplace_back(tensor.device());
        Stream::of(tensor.device()).record(ready_.back());
    }
    bytes_ += part.bytes;
    parts_.push_back(std::move(part));
}

bool TensorRange::shares_memory_with(const TensorRange& other) const {
    if (copied_ || other.copied_ || parts_.empty() || other.parts_.empty()) return false;
    return intersect(parts_[0].first, bytes_, other.parts_[0].first, other.bytes_);
}

bool TensorRange::is_part_of(const TensorRange& whole, std::size_t offset) const {
    if (copied_ || whole.copied_ || parts_.empty() || whole.parts_.empty()) return false;
    return parts_[0].first == whole.parts_[0].first + offset;
}

template <class Visit>
void TensorRange::each_run(Visit visit) {
    std::byte* at = copy_.get();
    for (const Part& part : parts_) {
        if (part.bytes == 0) continue;
        const TensorMeta& meta = part.meta;
        const std::size_t element = size_of(meta.dtype);
        int outer = meta.shape.dims();  // the dimensions behind these lie one element after the other
        std::int64_t run = 1;
        while (outer > 0 && (meta.shape[outer - 1] == 1 || meta.strides[outer - 1] == run)) run *= meta.shape[--outer];
        const std::size_t run_bytes = static_cast<std::size_t>(run) * element;
        std::array<std::int64_t, Shape::max_dims> index{};
        for (int dim = 0; dim >= 0;) {
            std::int64_t offset = 0;
            for (int i = 0; i < outer; ++i) offset += index[static_cast<std::size_t>(i)] * meta.strides[i];
            visit(part.first + offset * static_cast<std::int64_t>(element), at, run_bytes);
            at += run_bytes;
            for (dim = outer - 1; dim >= 0; --dim) {
                auto& number = index[static_cast<std::size_t>(dim)];
                if (++number < meta.shape[dim]) break;
                number = 0;
            }
        }
    }
}

std::byte* TensorRange::begin() {
    for (const Event& event : ready_) event.synchronize();
    if (!copied_) return parts_.empty() ? nullptr : parts_[0].first;
    if (bytes_ == 0) return nullptr;
    copy_ = std::make_unique_for_overwrite<std::byte[]>(bytes_);
    if (use_ != Use::write)
        each_run([](const std::byte* tensor, std::byte* copy, std::size_t n) { std::memcpy(copy, tensor, n); });
    return copy_.get();
}

void TensorRange::end() {
    if (copy_ && use_ != Use::read)
        each_run([](std::byte* tensor, const std::byte* copy, std::size_t n) { std::memcpy(tensor, copy, n); });
    copy_.reset();
}

}  // namespace lockstep
