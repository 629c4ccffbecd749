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

    /// Records `work(range, operands)`.
    template <class Work>
    void run(const Bucket& part, const UpdateMemory& memory, const Work& work) {
        const TraceScope scope(trace_);
        const NoGrad no_grad;
        UpdateOperands operands{
            input(memory.gradients, dtype_), input(memory.parameters, dtype_), input(memory.rows, DType::u8), {}};
        for (const auto& [name, ref] : memory.states) operands.states.emplace(name, input(ref, dtype_));
        if (memory.norms.memory) operands.norms = input(memory.norms, DType::f64);
        work(ArenaRange{part.begin, part.end, part.first_segment, part.last_segment}, operands);
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

    /// An operand at `ref`.
    Tensor input(const MemoryRef& ref, DType dtype) {
        inputs_.push_back(ref);
        return trace_.input(TensorMeta::contiguous(dtype, {static_cast<std::int64_t>(ref.bytes / size_of(dtype))}));
    }

private:
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

/// Appends the records of `update`.
void emit_records(Emitter& emitter, DeviceIndex device, TracedUpdate& update, bool updates) {
    const Topology& topology = emitter.topology();
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
        task.updates = updates;
        emitter.run(stream, std::move(task));
    }
}

}  // namespace

UpdateMemory update_memory(const ReductionMemory& reduction, Optimizer& optimizer, DeviceIndex device,
                           const Bucket& part) {
    const auto arena = static_cast<std::size_t>(part.arena);
    const OptimizerState& state = reduction.state(optimizer, device);
    UpdateMemory memory{
        reduction.gradients(device, part), reduction.parameters(device, part), fixed(state.rows[arena]), {}};
    const std::int64_t state_begin = reduction.cut().state_begin(part, device);
    for (const auto& [name, elements] : state.elements)
        memory.states.emplace(name, reduction.elements(elements[arena], part, state_begin));
    if (optimizer.needs_norms()) memory.norms = fixed(state.norms[arena]);
    return memory;
}

void emit_measurement(Emitter& emitter, DeviceIndex device, const Optimizer& optimizer, const Bucket& part,
                      const UpdateMemory& memory, const MemoryRef& measures) {
    TracedUpdate update(emitter.topology(), device, emitter.memory().layout(part.arena).dtype);
    update.run(part, memory, [&](const ArenaRange& range, const UpdateOperands& operands) {
        optimizer.measure_range(range, operands, update.input(measures, DType::f64));
    });
    emit_records(emitter, device, update, false);
}

void emit_update(Emitter& emitter, DeviceIndex device, const Optimizer& optimizer, const Bucket& part,
                 const UpdateMemory& memory) {
    TracedUpdate update(emitter.topology(), device, emitter.memory().layout(part.arena).dtype);
    update.run(part, memory, [&](const ArenaRange& range, const UpdateOperands& operands) {
        optimizer.update_range(range, operands);
    });
    emit_records(emitter, device, update, true);
}

}  // namespace lockstep
