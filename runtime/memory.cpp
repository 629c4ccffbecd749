#include "lockstep/runtime/memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/backend.h"
#include "lockstep/runtime/internal/forked.h"
#include "lockstep/runtime/internal/memory_pool.h"
#include "lockstep/runtime/internal/operand.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

std::shared_ptr<Buffer> Buffer::allocate(Stream& home, std::size_t bytes, std::string_view tag) {
    std::shared_ptr<Buffer> buffer(new Buffer);
    buffer->device_ = home.device();
    buffer->home_ = &home;
    buffer->data_ = take_memory(home, std::max<std::size_t>(bytes, 1), tag);
    buffer->bytes_ = bytes;
    buffer->made_in_ = forked::generation();
    return buffer;
}

std::shared_ptr<Buffer> Buffer::zeroed(Device device, std::size_t bytes, std::string_view tag) {
    Stream& stream = Stream::of(device);
    auto buffer = allocate(stream, bytes, tag);
    stream.fill(buffer->data(), 0, bytes);
    stream.synchronize();
    return buffer;
}

std::shared_ptr<Buffer> Buffer::allocate_pinned(std::size_t bytes) {
    std::shared_ptr<Buffer> buffer(new Buffer);
    buffer->home_ = &Stream::of(Device::host());
    buffer->pinned_by_ = cuda_backend().in_use() ? &cuda_backend() : &cpu_backend();
    buffer->bytes_ = bytes;
    buffer->made_in_ = forked::generation();
    buffer->data_ = buffer->pinned_by_->allocate_pinned(std::max<std::size_t>(bytes, 1));
    if (!buffer->data_) throw OutOfMemory(fmt::format("out of pinned host memory: {} bytes requested", bytes));
    return buffer;
}

std::shared_ptr<Buffer> Buffer::symbolic(Trace& trace, int id, std::size_t bytes) {
    std::shared_ptr<Buffer> buffer(new Buffer);
    buffer->trace_ = trace.number();
    buffer->device_ = trace.prototype();
    buffer->trace_id_ = id;
    buffer->bytes_ = bytes;
    return buffer;
}

bool Buffer::belongs_to(const Trace& trace) const { return trace_ == trace.number(); }

std::shared_ptr<Buffer> Buffer::part(std::shared_ptr<Buffer> whole, std::size_t offset, std::size_t bytes) {
    if (!whole) throw InvalidArgument("part of a buffer: the buffer is null; expected an allocated one");
    if (offset > whole->bytes_ || bytes > whole->bytes_ - offset)
        throw InvalidArgument(
            fmt::format("part of a buffer: {} bytes from byte {} of {}; expected a range within the buffer", bytes,
                        offset, whole->bytes_));
    std::shared_ptr<Buffer> buffer(new Buffer);
    buffer->device_ = whole->device_;
    buffer->home_ = whole->home_;
    buffer->data_ = static_cast<char*>(whole->data()) + offset;
    buffer->bytes_ = bytes;
    buffer->offset_ = offset;
    buffer->pinned_by_ = whole->pinned_by_;
    buffer->whole_ = std::move(whole);
    return buffer;
}

Buffer::~Buffer() {
    if (whole_ || trace_ || !data_) return;
    if (made_in_ != forked::generation()) return;  // the parent's: its streams don't run here
    if (pinned_by_) {
        try {
            for (Stream* stream : others_) stream->synchronize();
        } catch (...) {  // the failure is reported where the stream is synchronised next
        }
        pinned_by_->release_pinned(data_, bytes_);
        return;
    }
    try {
        for (Stream* stream : others_) home_->wait(*stream);
        put_back_memory(*home_, data_);
    } catch (...) {  // a destructor must not throw; the block is lost to the pool
    }
}

void* Buffer::data() const {
    if (trace_) throw_without_value("");
    return data_;
}

void Buffer::used_on(Stream& stream) {
    if (whole_) {
        whole_->used_on(stream);
    } else if (&stream != home_ && std::find(others_.begin(), others_.end(), &stream) == others_.end()) {
        others_.push_back(&stream);
    }
}

}  // namespace lockstep
