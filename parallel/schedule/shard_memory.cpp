#include "lockstep/parallel/schedule/shard_memory.h"

#include <algorithm>
#include <utility>

#include "lockstep/parallel/program/memory_plan.h"
#include "lockstep/parallel/program/parameter_casts.h"

namespace lockstep {

namespace {

/// Records when buffers are used; records count from 0, -1 is before them and `end` after them.
class Lifetimes {
public:
    explicit Lifetimes(std::size_t buffers) : buffers_(buffers), touched_(buffers, false) {}
    void use(const Operand& operand, long first, long last) {
        if (!operand.buffer || !operand.buffer->is_symbolic()) return;
        const auto id = static_cast<std::size_t>(operand.buffer->trace_id());
        PlannedBuffer& buffer = buffers_[id];
        buffer.bytes = operand.buffer->bytes();
        buffer.first = touched_[id] ? std::min(buffer.first, first) : first;
        buffer.last = touched_[id] ? std::max(buffer.last, last) : last;
        touched_[id] = true;
    }
    void remove(std::size_t id) { buffers_[id].last = buffers_[id].first - 1; }
    std::vector<PlannedBuffer>& buffers() { return buffers_; }

private:
    std::vector<PlannedBuffer> buffers_;
    std::vector<bool> touched_;
};

}  // namespace

ShardMemory::ShardMemory(const Topology& topology, EngineMemory& memory, const ConstantCache& constants,
                         const BatchProgram& batch, const GradientReduction* reduction)
    : topology_(topology), memory_(memory), constants_(constants), plans_(static_cast<std::size_t>(batch.cut.present)) {
    const bool agree = casts_agree(*batch.full, *batch.last);
    for (int shard = batch.held.first; shard < batch.held.last; ++shard) {
        const ShardProgram& program = batch.of(shard);
        GradientPlan elsewhere = reduction ? reduction->plan(shard, program) : GradientPlan();
        for (const ParameterCast& cast : program.casts) {
            const ArenaSegment& segment = memory.store()->segment(cast.parameter);
            const std::size_t size = size_of(cast.meta.dtype);
            Stream& stream = topology.first_compute(topology.replica_of(shard));
            const int set = &program == batch.last.get() && !agree ? 1 : 0;
            elsewhere.direct[cast.buffer] = fixed(memory.casts(stream, cast.parameter.arena, cast.meta.dtype, set),
                                                  static_cast<std::size_t>(segment.begin) * size,
                                                  static_cast<std::size_t>(segment.end - segment.begin) * size);
        }
        plans_[static_cast<std::size_t>(shard)] = plan(program, topology.device_of(shard), std::move(elsewhere));
    }
}

ShardMemory::Plan ShardMemory::plan(const ShardProgram& program, Device device, GradientPlan gradients) {
    const long end = static_cast<long>(program.records.size());
    Lifetimes lifetimes(static_cast<std::size_t>(program.trace->buffers()));
    std::size_t scratch_bytes = 0;
    for (std::size_t i = 0; i < program.records.size(); ++i) {
        const Record& record = program.records[i];
        const long at = static_cast<long>(i);
        // Memory that other shards or another stream read is never reused.
        const bool shared = is_cross_shard(record);
        const bool committed = i >= program.commit_begin && i < program.backward_begin;
        for (const auto* side : {&record.in, &record.out})
            for (const Operand& operand : *side)
                lifetimes.use(operand, shared ? -1 : at, shared || committed ? end : at);
        scratch_bytes = std::max(scratch_bytes, kernel_on(record, device)->scratch_bytes());
    }
    for (const auto* given : {&program.inputs, &program.denominators})
        for (const Operand& operand : *given) lifetimes.use(operand, -1, -1);
    lifetimes.use(program.loss_scale, -1, -1);
    for (const auto* results : {&program.outputs, &program.input_gradients})
        for (const Operand& operand : *results) lifetimes.use(operand, end, end);
    for (const Operand* result : {&program.loss, &program.squares}) lifetimes.use(*result, end, end);
    for (const Operand& operand : program.output_gradients) {
        const long before = static_cast<long>(program.commit_begin);
        lifetimes.use(operand, before, before);
    }
    for (std::size_t i = 0; i < gradients.kept.size(); ++i)
        lifetimes.use(program.deliveries[i].gradient, gradients.kept[i], gradients.kept[i]);
    for (const auto& [id, ref] : gradients.direct) lifetimes.remove(static_cast<std::size_t>(id));
    Plan plan;
    plan.scratch = plan_memory(lifetimes.buffers());
    plan.total = plan.scratch + scratch_bytes;
    for (const PlannedBuffer& buffer : lifetimes.buffers()) plan.offsets.push_back(buffer.offset);
    plan.direct = std::move(gradients.direct);
    return plan;
}

std::ptrdiff_t offset_of_first(const Operand& operand) {
    return static_cast<std::ptrdiff_t>(operand.meta.offset) * static_cast<std::ptrdiff_t>(size_of(operand.meta.dtype));
}

MemoryRef ShardMemory::ref(int shard, const Operand& operand) const {
    MemoryRef ref;
    if (!operand.buffer) return ref;
    if (!operand.buffer->is_symbolic()) return lasting(topology_.replica_of(shard), operand);
    const Plan& plan = plan_of(shard);
    const int id = operand.buffer->trace_id();
    if (const auto found = plan.direct.find(id); found != plan.direct.end()) {
        ref = found->second;
        ref.first += offset_of_first(operand);  // for a view of a parameter's cast
        return ref;
    }
    ref.owner = topology_.device_of(shard);
    ref.bytes = operand.buffer->bytes();
    ref.first = offset_of_first(operand);
    ref.workspace = shard;
    ref.offset = plan.offsets[static_cast<std::size_t>(id)];
    return ref;
}

MemoryRef ShardMemory::lasting(DeviceIndex replica, const Operand& operand) const {
    MemoryRef ref;
    ref.owner = topology_.devices[replica];
    ref.bytes = operand.buffer->bytes();
    ref.first = offset_of_first(operand);
    const Replica &first = memory_.replica(first_device), &own = memory_.replica(replica);
    const auto& whole = operand.buffer->whole();
    for (const auto member : {&Replica::parameters, &Replica::buffers})
        for (std::size_t a = 0; a < (first.*member).size(); ++a)
            if (whole && (first.*member)[a] == whole) {
                ref.memory = (own.*member)[a];
                ref.offset = operand.buffer->offset_in_whole();
                return ref;
            }
    ref.memory = constants_.on(operand.storage, replica);
    return ref;
}

MemoryRef ShardMemory::scratch(int shard, std::size_t bytes) const {
    MemoryRef ref;
    if (bytes == 0) return ref;
    ref.workspace = shard;
    ref.offset = plan_of(shard).scratch;
    ref.bytes = bytes;
    ref.owner = topology_.device_of(shard);
    return ref;
}

}  // namespace lockstep
