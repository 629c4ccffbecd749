#include "lockstep/parallel/schedule/within_process.h"

#include "lockstep/parallel/schedule/schedule_builder.h"

namespace lockstep {

std::vector<MemoryRef> WithinProcess::emit_inputs(ScheduleBuilder& builder, RecordPair records) {
    const Topology& topology = builder.topology();
    Emitter& emitter = builder.emitter();
    Stream& root = topology.compute(0);
    for (const ComputeLane& lane : topology.lanes)
        if (lane.stream != &root && builder.has_rows(lane)) emitter.wait(root, *lane.stream);
    std::vector<MemoryRef> inputs;
    for (int shard = 0; shard < builder.batch().cut.present; ++shard)
        for (const Operand& operand : builder.record_of(shard, records).in) {
            const MemoryRef own = builder.memory().ref(shard, operand);
            inputs.push_back(shard == 0 ? own : emitter.readable_on(root, own));
        }
    return inputs;
}

std::vector<MemoryRef> WithinProcess::emit_outputs(ScheduleBuilder& builder) {
    Stream& root = builder.topology().reduce(first_device);
    builder.emitter().wait(root, builder.record_lanes());
    std::vector<MemoryRef> outputs;
    for (int shard = 0; shard < builder.batch().cut.present; ++shard)
        for (const Operand& output : builder.batch().of(shard).outputs)
            outputs.push_back(builder.emitter().readable_on(root, builder.memory().ref(shard, output)));
    return outputs;
}

std::vector<MemoryRef> WithinProcess::emit_statuses(ScheduleBuilder& builder, int shards) {
    Stream& root = builder.topology().commit(first_device);
    builder.emitter().wait(root, builder.record_lanes());
    std::vector<MemoryRef> words;
    for (int shard = 0; shard < shards; ++shard) {
        const ControlBlock& control = builder.emitter().memory().control(builder.topology().replica_of(shard));
        words.push_back(builder.emitter().readable_on(root, control.shard_ref(shard)));
    }
    return words;
}

TaskSpec WithinProcess::commit_task(ScheduleBuilder& builder, const Record& record) {
    return builder.task_of(0, record, false);
}

MemoryRef WithinProcess::prepared(ScheduleBuilder& builder, const MemoryRef& buffer) {
    return builder.part()->carry->in_copy(builder.emitter().memory(), buffer);
}

MemoryRef WithinProcess::loss(ScheduleBuilder& builder) { return builder.loss_of_shard_0(); }

}  // namespace lockstep
