#include "lockstep/runtime/trace.h"

#include <atomic>
#include <utility>

#include "lockstep/runtime/internal/operands.h"

namespace lockstep {

namespace {
thread_local Trace* current_trace = nullptr;
std::atomic<std::uint64_t> next_number{1};
}  // namespace

Trace::Trace(const TraceSettings& settings) : number_(next_number++), settings_(settings) {}

Tensor Trace::input(const TensorMeta& meta, bool requires_grad) {
    Tensor input = tensor_over(buffer(meta.bytes()), meta);
    input.impl()->requires_grad = requires_grad;
    return input;
}

std::shared_ptr<Buffer> Trace::buffer(std::size_t bytes) { return Buffer::symbolic(*this, buffers_++, bytes); }

void Trace::append(Record record) { (record.operation->commits() ? commits_ : records_).push_back(std::move(record)); }

Trace* Trace::current() { return current_trace; }

TraceScope::TraceScope(Trace& trace) : previous_(std::exchange(current_trace, &trace)) {}
TraceScope::TraceScope(std::nullptr_t) : previous_(std::exchange(current_trace, nullptr)) {}
TraceScope::~TraceScope() { current_trace = previous_; }

}  // namespace lockstep
