#include "lockstep/parallel/reduce/update_tasks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "lockstep/parallel/program/memory_plan.h"
#include "lockstep/parallel/schedule/shard_memory.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

namespace {

/// The records of one update, in execution order, with the locations of all operands.
class TracedUpdate {
public:
    TracedUpdate(const Topology& topology, DeviceIndex device, DType dtype)
        : trace_({.prototype = topology.devices[device], .deterministic = topology.arithmetic.deterministic}),
          dtype_(dtype) {}

    void run(const Optimizer& optimizer, const Bucket& part, const UpdateMemory& memory) {
        const TraceScope scope(trace_);
        const NoGrad no_grad;
        UpdateOperands operands{
            input(memory.gradients, dtype_), input(memory.parameters, dtype_), input(memory.rows, DType::u8), {}};
        for (const auto& [name, ref] : memory.states) operands.states.emplace(name, input(ref, dtype_));
        optimizer.update_range({part.begin, part.end, part.first_segment, part.last_segment}, operands);
        records_ = std::move(trace_.records());
        for (Record& record : trace_.commits()) records_.push_back(std::move(record));
    }
    const std::vector<Record>& records() const { return records_; }

    /// Bytes of all temporaries between the records.
    std::size_t plan() {
        temporaries_.resize(static_cast<std::size_t>(trace_.buffers()));
        for (std::size_t i = 0; i < records_.size(); ++i)
            for (const auto* side : {&records_[i].in, &records_[i].out})
                for (const Operand& operand : *side) note_use(operand, static_cast<long>(i));
        return plan_memory(temporaries_);
    }
    MemoryRef ref(const Operand& operand, const std::shared_ptr<Buffer>& temporaries) const {
        if (!operand.buffer) return {};
        const auto id = static_cast<std::size_t>(operand.buffer->trace_id());
        MemoryRef ref =
            id < inputs_.size() ? inputs_[id] : fixed(temporaries, temporaries_[id].offset, operand.buffer->bytes());
        ref.first += offset_of_first(operand);
        return ref;
    }

private:
    Tensor input(const MemoryRef& ref, DType dtype) {
        inputs_.push_back(ref);
        return trace_.input(TensorMeta::contiguous(dtype, {static_cast<std::int64_t>(ref.bytes / size_of(dtype))}));
    }
    void note_use(const Operand& operand, long record) {
        if (!operand.buffer) return;
        const auto id = static_cast<std::size_t>(operand.buffer->trace_id());
        if (id < inputs_.size()) return;
        PlannedBuffer& buffer = temporaries_[id];
        if (buffer.bytes == 0) buffer.first = record;
        buffer.bytes = operand.buffer->bytes();
        buffer.last = record;
    }

    Trace trace_;
    DType dtype_;
    std::vector<Record> records_;
    std::vector<MemoryRef> inputs_;           ///< by trace id: inputs are the first buffers of a trace
    std::vector<PlannedBuffer> temporaries_;  ///< temporaries, also by trace id
};

}  // namespace

void emit_update(Emitter& emitter, DeviceIndex device, const Optimizer& optimizer, const Bucket& part,
                 const UpdateMemory& memory) {
    const Topology& topology = emitter.topology();
    TracedUpdate update(topology, device, emitter.memory().layout(part.arena).dtype);
    update.run(optimizer, part, memory);
    Stream& stream = topology.commit(device);
    // Updates use the same memory one after the other, because they are all on one stream.
    const std::size_t between = update.plan();
    std::shared_ptr<Buffer> temporaries;
    if (between > 0) temporaries = emitter.memory().temporaries(stream, between);
    const ControlBlock& control = emitter.memory().control(device);
    for (const Record& record : update.records()) {
        TaskSpec task;
        task.operation = record.operation;
        task.kernel = kernel_on(record, topology.devices[device]);
        task.call = record.call;
        for (const Operand& operand : record.in) task.in.push_back(update.ref(operand, temporaries));
        for (const Operand& operand : record.out) task.out.push_back(update.ref(operand, temporaries));
        if (const std::size_t bytes = task.kernel->scratch_bytes())
            task.scratch = fixed(emitter.memory().scratch(stream, bytes), 0, bytes);
        task.step = control.step();
        task.agreed = control.agreed();
        task.health = emitter.memory().health().get();
        task.replica = device;
        task.updates = true;
        emitter.run(stream, std::move(task));
    }
}

}  // namespace lockstep
