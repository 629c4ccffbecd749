#include "lockstep/parallel/schedule/shard_memory.h"

#include <algorithm>

#include "lockstep/parallel/program/memory_plan.h"

namespace lockstep {

namespace {

long ready_in(const EngineContext& context, const ShardProgram& program, const Bucket& bucket) {
    long ready = -1;
    for (const Delivery& delivery : program.deliveries)
        if (delivery.arena == bucket.arena && delivery.segment >= bucket.first_segment &&
            delivery.segment < bucket.last_segment)
            ready = std::max(ready, static_cast<long>(delivery.ready));
    const auto& arena = context.store->replicas()[0].parameters[static_cast<std::size_t>(bucket.arena)];
    const std::size_t size = size_of(context.store->parameters()[static_cast<std::size_t>(bucket.arena)].dtype);
    for (std::size_t i = 0; i < program.records.size(); ++i)
        for (const Operand& operand : program.records[i].in) {
            if (!operand.buffer || operand.buffer->is_symbolic() || operand.buffer->whole() != arena) continue;
            const std::size_t begin = operand.buffer->offset_in_whole();
            if (begin < static_cast<std::size_t>(bucket.end) * size &&
                begin + operand.buffer->bytes() > static_cast<std::size_t>(bucket.begin) * size)
                ready = std::max(ready, static_cast<long>(i));
        }
    return ready;
}

/// Notes when places are used; the records count from 0, -1 is before them and `end` after them.
class Lifetimes {
public:
    explicit Lifetimes(std::size_t places) : buffers_(places), touched_(places, false) {}
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

Readiness ready_after(const EngineContext& context, const BatchProgram& batch, const Bucket& bucket) {
    return {ready_in(context, *batch.full, bucket), ready_in(context, *batch.last, bucket)};
}

ShardMemory::ShardMemory(const EngineContext& context, const ConstantCache& constants, const BatchProgram& batch,
                         const PartialSums* sums, const std::vector<Bucket>& buckets,
                         const std::vector<Readiness>& ready)
    : context_(context),
      constants_(constants),
      plans_(static_cast<std::size_t>(batch.cut.present)),
      direct_(static_cast<std::size_t>(batch.cut.present)) {
    for (int shard = batch.held.first; shard < batch.held.last; ++shard) {
        const ShardProgram& program = batch.of(shard);
        std::vector<bool> outside(static_cast<std::size_t>(program.trace->places()), false);
        const GradientNode* node = sums ? &sums->node_of(shard) : nullptr;
        if (node && node->in_arena() && node->range.size() == 1) {
            for (const Delivery& delivery : program.deliveries) {
                const ArenaLayout& arena = context.store->parameters()[static_cast<std::size_t>(delivery.arena)];
                const ArenaSegment& segment = arena.segments[static_cast<std::size_t>(delivery.segment)];
                const int id = delivery.gradient.buffer->trace_id();
                PlaceRef place;
                place.memory = node->arenas[static_cast<std::size_t>(delivery.arena)];
                place.offset = static_cast<std::size_t>(segment.begin) * size_of(arena.dtype);
                place.bytes = delivery.gradient.buffer->bytes();
                place.owner = device_of(shard);
                direct_[static_cast<std::size_t>(shard)][id] = place;
                outside[static_cast<std::size_t>(id)] = true;
            }
        }
        std::vector<long> kept;
        for (const Delivery& delivery : program.deliveries) {
            long last = static_cast<long>(delivery.ready);
            if (node && !node->in_arena())  // its buckets are moved to a slot when they are ready, part by part
                for (std::size_t b = 0; b < buckets.size(); ++b)
                    if (delivery.arena == buckets[b].arena && delivery.segment >= buckets[b].first_segment &&
                        delivery.segment < buckets[b].last_segment)
                        last = std::max(last, ready[b].full);
            // A longer shard of the same sum may come later in the order of records.
            kept.push_back(batch.uneven() ? static_cast<long>(program.records.size()) : last);
        }
        plans_[static_cast<std::size_t>(shard)] = plan(program, device_of(shard), outside, kept);
    }
}

ShardMemory::Plan ShardMemory::plan(const ShardProgram& program, Device device,
                                    const std::vector<bool>& outside_workspace, const std::vector<long>& kept) {
    const long end = static_cast<long>(program.records.size());
    Lifetimes lifetimes(outside_workspace.size());
    std::size_t scratch_bytes = 0;
    for (std::size_t i = 0; i < program.records.size(); ++i) {
        const Record& record = program.records[i];
        const long at = static_cast<long>(i);
        // What other shards read, or another stream, is never given to anything else.
        const bool shared = record.operation->span() == Span::all_shards;
        const bool committed = i >= program.commit_begin && i < program.backward_begin;
        for (const auto* side : {&record.in, &record.out})
            for (const Operand& operand : *side)
                lifetimes.use(operand, shared ? -1 : at, shared || committed ? end : at);
        scratch_bytes = std::max(scratch_bytes, kernel_on(record, device)->scratch_bytes());
    }
    for (const auto* given : {&program.inputs, &program.weights})
        for (const Operand& operand : *given) lifetimes.use(operand, -1, -1);
    for (const auto* results : {&program.outputs, &program.input_gradients})
        for (const Operand& operand : *results) lifetimes.use(operand, end, end);
    lifetimes.use(program.loss, end, end);
    for (const Operand& operand : program.output_gradients) {
        const long before = static_cast<long>(program.commit_begin);
        lifetimes.use(operand, before, before);
    }
    for (std::size_t i = 0; i < kept.size(); ++i) lifetimes.use(program.deliveries[i].gradient, kept[i], kept[i]);
    for (std::size_t id = 0; id < outside_workspace.size(); ++id)
        if (outside_workspace[id]) lifetimes.remove(id);
    Plan plan;
    plan.scratch = plan_memory(lifetimes.buffers());
    plan.total = plan.scratch + scratch_bytes;
    for (const PlannedBuffer& buffer : lifetimes.buffers()) plan.offsets.push_back(buffer.offset);
    return plan;
}

std::ptrdiff_t offset_of_first(const Operand& operand) {
    return static_cast<std::ptrdiff_t>(operand.meta.offset) * static_cast<std::ptrdiff_t>(size_of(operand.meta.dtype));
}

int ShardMemory::replica_of(int shard) const {
    return context_.lanes[static_cast<std::size_t>(context_.lane_of(shard))].device;
}

Device ShardMemory::device_of(int shard) const { return context_.devices[replica_of(shard)]; }

PlaceRef ShardMemory::place(int shard, const Operand& operand) const {
    PlaceRef place;
    if (!operand.buffer) return place;
    if (!operand.buffer->is_symbolic()) return lasting(replica_of(shard), operand);
    const auto& direct = direct_[static_cast<std::size_t>(shard)];
    if (const auto found = direct.find(operand.buffer->trace_id()); found != direct.end()) return found->second;
    place.owner = device_of(shard);
    place.bytes = operand.buffer->bytes();
    place.first = offset_of_first(operand);
    place.workspace = shard;
    place.offset = plan_of(shard).offsets[static_cast<std::size_t>(operand.buffer->trace_id())];
    return place;
}

PlaceRef ShardMemory::lasting(int replica, const Operand& operand) const {
    PlaceRef place;
    place.owner = context_.devices[replica];
    place.bytes = operand.buffer->bytes();
    place.first = offset_of_first(operand);
    const std::vector<Replica>& replicas = context_.store->replicas();
    const auto& whole = operand.buffer->whole();
    for (const auto member : {&Replica::parameters, &Replica::buffers})
        for (std::size_t a = 0; a < (replicas[0].*member).size(); ++a)
            if (whole && (replicas[0].*member)[a] == whole) {
                place.memory = (replicas[static_cast<std::size_t>(replica)].*member)[a];
                place.offset = operand.buffer->offset_in_whole();
                return place;
            }
    place.memory = constants_.on(operand.storage, replica);
    return place;
}

PlaceRef ShardMemory::scratch(int shard, std::size_t bytes) const {
    PlaceRef place;
    if (bytes == 0) return place;
    place.workspace = shard;
    place.offset = plan_of(shard).scratch;
    place.bytes = bytes;
    place.owner = device_of(shard);
    return place;
}

}  // namespace lockstep
