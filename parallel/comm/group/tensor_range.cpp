#include "lockstep/parallel/comm/group/tensor_range.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/operands.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

/// Pinned memory that operations between processes reuse: pinning takes longer than filling it.
struct Cache {
    std::mutex mutex;
    std::map<std::size_t, std::vector<std::shared_ptr<Buffer>>> free;  ///< by size
};

Cache& cache() {
    static auto* instance = new Cache;  // never destroyed: tensors may return memory during exit
    return *instance;
}

/// At least `bytes` bytes, from any thread. Cached for reuse when the last owner releases it; no operation may use it
/// then.
std::shared_ptr<Buffer> take_pinned(std::size_t bytes) {
    const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
    std::shared_ptr<Buffer> memory;
    {
        const std::scoped_lock lock(cache().mutex);
        auto& free = cache().free[size];
        if (!free.empty()) {
            memory = std::move(free.back());
            free.pop_back();
        }
    }
    if (!memory) memory = Buffer::allocate_pinned(size);
    Buffer* const block = memory.get();
    return {block, [size, memory = std::move(memory)](Buffer*) mutable {
                try {
                    const std::scoped_lock lock(cache().mutex);
                    cache().free[size].push_back(std::move(memory));
                } catch (const std::bad_alloc&) {  // then it is not cached
                }
            }};
}

bool intersect(const std::byte* a, std::size_t a_bytes, const std::byte* b, std::size_t b_bytes) {
    return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

void require_movable(std::string_view operation, const Tensor& tensor, bool written) {
    if (!tensor.defined()) throw InvalidArgument(fmt::format("{}: a tensor is undefined", operation));
    if (Trace::current() || tensor.is_symbolic())
        throw InvalidArgument(
            fmt::format("{}: called while forward is traced; expected a call before or after the step", operation));
    if (written && grad_enabled() && tensor.requires_grad())
        throw InvalidArgument(
            fmt::format("{}: writes a tensor that autograd records; write it inside a NoGrad scope", operation));
    if (written) require_single_elements(tensor, operation);
}

/// Separate streams, so that data returned by one operation does not wait for the input of a later one.
Stream& staging_stream(Device device, bool to_device) {
    return Stream::of(device, StreamRole::collective, to_device ? 2 : 1);
}

}  // namespace

struct TensorRange::Block {
    std::byte* tensor;
    std::byte* copy;
    std::size_t row_bytes, pitch;  ///< `pitch`: bytes between rows of the tensor; the copy has no gaps
    std::size_t rows = 1;
};

TensorRange::TensorRange(std::string_view operation, std::span<const Tensor> tensors, Use use) : use_(use) {
    for (const Tensor& tensor : tensors) require_movable(operation, tensor, use != Use::read);
    for (const Tensor& tensor : tensors) add(operation, tensor);
    copied_ = parts_.size() > 1 || (parts_.size() == 1 && !parts_[0].meta.is_contiguous());
    for (const Part& part : parts_) staged_ = staged_ || !host_access(part.buffer->device());
    if (use == Use::read) return;
    for (const Tensor& tensor : tensors) tensor.impl()->storage->count_write();
}

void TensorRange::add(std::string_view operation, const Tensor& tensor) {
    make_strided(tensor);
    const TensorImpl& impl = *tensor.impl();
    Part part{impl.storage->buffer, impl.meta, nullptr,
              static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype())};
    if (part.bytes > 0) part.first = static_cast<std::byte*>(first_element(tensor));
    for (const Part& other : parts_) {
        const bool known = part.meta.is_contiguous() && other.meta.is_contiguous();
        if (use_ != Use::read && part.bytes > 0 &&
            (known ? intersect(part.first, part.bytes, other.first, other.bytes) : part.first == other.first))
            throw InvalidArgument(
                fmt::format("{}: two tensors that it writes share memory; clone() one of them", operation));
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
void TensorRange::each_block(Visit visit) {
    std::byte* at = memory();  // elements are contiguous in the copy
    for (const Part& part : parts_) {
        if (part.bytes == 0) continue;
        const TensorMeta& meta = part.meta;
        const auto element = static_cast<std::int64_t>(size_of(meta.dtype));
        int outer = meta.shape.dims();  // the dimensions after these are contiguous
        std::int64_t run = 1;
        while (outer > 0 && (meta.shape[outer - 1] == 1 || meta.strides[outer - 1] == run)) run *= meta.shape[--outer];
        const auto row_bytes = static_cast<std::size_t>(run * element);
        Block block{part.first, at, row_bytes, row_bytes};
        if (outer > 0 && meta.strides[outer - 1] >= run) {  // rows of one pitch: one block
            --outer;
            block.pitch = static_cast<std::size_t>(meta.strides[outer] * element);
            block.rows = static_cast<std::size_t>(meta.shape[outer]);
        }
        std::array<std::int64_t, Shape::max_dims> index{};
        for (int dim = 0; dim >= 0;) {
            std::int64_t offset = 0;
            for (int i = 0; i < outer; ++i) offset += index[static_cast<std::size_t>(i)] * meta.strides[i];
            block.tensor = part.first + offset * element;
            block.copy = at;
            visit(part.buffer->device(), block);
            at += block.row_bytes * block.rows;
            for (dim = outer - 1; dim >= 0; --dim) {
                auto& number = index[static_cast<std::size_t>(dim)];
                if (++number < meta.shape[dim]) break;
                number = 0;
            }
        }
    }
}

void TensorRange::move(bool to_tensors) {
    std::vector<Stream*> used;
    const auto settle = [&] {
        for (Stream* stream : used) {
            Event moved(stream->device());
            stream->record(moved);
            moved.synchronize();
        }
    };
    try {
        each_block([&](Device device, const Block& block) {
            if (host_access(device)) {
                for (std::size_t row = 0; row < block.rows; ++row) {
                    std::byte* const tensor = block.tensor + row * block.pitch;
                    std::byte* const copy = block.copy + row * block.row_bytes;
                    std::memcpy(to_tensors ? tensor : copy, to_tensors ? copy : tensor, block.row_bytes);
                }
                return;
            }
            Stream& stream = staging_stream(device, to_tensors);
            if (std::find(used.begin(), used.end(), &stream) == used.end()) used.push_back(&stream);
            if (to_tensors)
                stream.copy_2d(block.tensor, block.pitch, device, block.copy, block.row_bytes, copy_device_,
                               block.row_bytes, block.rows);
            else
                stream.copy_2d(block.copy, block.row_bytes, copy_device_, block.tensor, block.pitch, device,
                               block.row_bytes, block.rows);
        });
    } catch (...) {
        try {
            settle();                   // enqueued copies use the memory
        } catch (const DeviceError&) {  // the first error is reported
        }
        throw;
    }
    settle();
}

std::byte* TensorRange::memory() const {
    return copy_buffer_ ? static_cast<std::byte*>(copy_buffer_->data()) : copy_.get();
}

std::optional<Device> TensorRange::gpu() const {
    std::optional<Device> one;
    for (const Part& part : parts_) {
        const Device device = part.buffer->device();
        if (device.kind() != DeviceKind::cuda || (one && *one != device)) return std::nullopt;
        one = device;
    }
    return one;
}

std::byte* TensorRange::begin(std::optional<Device> on) {
    for (const Event& event : ready_) event.synchronize();
    if (bytes_ == 0) return nullptr;
    if (!copied_ && (on || !staged_)) return parts_[0].first;
    copy_device_ = on.value_or(Device::host());
    if (on)
        copy_buffer_ = Buffer::allocate(staging_stream(*on, false), bytes_, "operation between processes");
    else if (staged_)
        copy_buffer_ = take_pinned(bytes_);
    else
        copy_ = std::make_unique_for_overwrite<std::byte[]>(bytes_);
    if (use_ != Use::write) move(false);
    return memory();
}

void TensorRange::end() {
    if (memory() && use_ != Use::read) move(true);
    copy_.reset();
    copy_buffer_.reset();
}

}  // namespace lockstep
