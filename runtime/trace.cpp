#include "lockstep/runtime/trace.h"

#include <atomic>
#include <utility>

namespace lockstep {

namespace {
thread_local Trace* current_trace = nullptr;
std::atomic<std::uint64_t> next_number{1};
}  // namespace

Trace::Trace(const TraceSettings& settings) : number_(next_number++), settings_(settings) {}

Tensor Trace::input(const TensorMeta& meta, bool requires_grad) {
    auto impl = std::make_shared<TensorImpl>();
    impl->storage = std::make_shared<Storage>();
    impl->storage->opaque = meta.opaque;
    impl->storage->buffer = buffer(meta.bytes());
    impl->meta = meta;
    if (meta.opaque) impl->meta.strides = meta.shape.contiguous_strides();  // should it become strided
    impl->meta.opaque = nullptr;
    impl->requires_grad = requires_grad;
    return Tensor(std::move(impl));
}

std::shared_ptr<Buffer> Trace::buffer(std::size_t bytes) { return Buffer::symbolic(*this, buffers_++, bytes); }

void Trace::append(Record record) { (record.operation->commits() ? commits_ : records_).push_back(std::move(record)); }

Trace* Trace::current() { return current_trace; }

TraceScope::TraceScope(Trace& trace) : previous_(std::exchange(current_trace, &trace)) {}
TraceScope::TraceScope(std::nullptr_t) : previous_(std::exchange(current_trace, nullptr)) {}
TraceScope::~TraceScope() { current_trace = previous_; }

}  // namespace lockstep
