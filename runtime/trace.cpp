#include "lockstep/runtime/trace.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "lockstep/runtime/internal/operands.h"

namespace lockstep {

namespace {
thread_local Trace* current_trace = nullptr;
std::atomic<std::uint64_t> next_number{1};
}  // namespace

Trace::Trace(const TraceSettings& settings, std::optional<std::int64_t> batch_rows)
    : number_(next_number++), settings_(settings), batch_rows_(batch_rows) {}

Tensor Trace::input(const TensorMeta& meta, bool requires_grad) {
    Tensor input = tensor_over(buffer(meta.bytes()), meta);
    input.impl()->requires_grad = requires_grad;
    by_shard_.back() = true;
    return input;
}

std::shared_ptr<Buffer> Trace::buffer(std::size_t bytes) {
    by_shard_.push_back(false);
    return Buffer::symbolic(*this, buffers_++, bytes);
}

bool Trace::differs(const Buffer* buffer) const {
    return buffer != nullptr && buffer->belongs_to(*this) && by_shard_[static_cast<std::size_t>(buffer->trace_id())];
}

bool Trace::differs_by_shard(const Tensor& tensor) const { return differs(tensor.impl()->storage->buffer.get()); }

void Trace::set_differs_by_shard(const Tensor& tensor, bool by_shard) {
    by_shard_[static_cast<std::size_t>(tensor.impl()->storage->buffer->trace_id())] = by_shard;
}

void Trace::append(Record record) {
    const Operation& operation = *record.operation;
    const bool reads_shard = std::any_of(record.in.begin(), record.in.end(),
                                         [this](const Operand& input) { return differs(input.buffer.get()); });
    if (operation.scope() == OperationScope::shard && (reads_shard || operation.is_random()))
        for (const Operand& output : record.out)
            if (output.buffer && output.buffer->belongs_to(*this))
                by_shard_[static_cast<std::size_t>(output.buffer->trace_id())] = true;
    (operation.commits() ? commits_ : records_).push_back(std::move(record));
}

Trace* Trace::current() { return current_trace; }

TraceScope::TraceScope(Trace& trace) : previous_(std::exchange(current_trace, &trace)) {}
TraceScope::TraceScope(std::nullptr_t) : previous_(std::exchange(current_trace, nullptr)) {}
TraceScope::~TraceScope() { current_trace = previous_; }

}  // namespace lockstep
