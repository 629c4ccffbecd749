// Commands that only microbatches emit: loading the results of earlier ones, and storing results for later ones.
#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/parallel/schedule/schedule_builder.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

namespace {

TensorMeta scalar(DType dtype) { return TensorMeta::contiguous(dtype, {}); }

}  // namespace

void ScheduleBuilder::begin_microbatch(const Microbatch& part) {
    part_ = &part;
    if (part.first) emit_state_of_microbatch();
    for (int shard = batch_.held.first; shard < batch_.held.last; ++shard)
        for (std::size_t i = 0; i < batch_.of(shard).denominators.size(); ++i)
            emitter_.copy(topology().compute(shard), part.carry->denominator(topology().replica_of(shard), i),
                          memory_.ref(shard, batch_.of(shard).denominators[i]));
}

/// Initializes the state of the step, and the copies of buffers to which records commit.
void ScheduleBuilder::emit_state_of_microbatch() {
    std::vector<int> before;  // all lanes have waited for the previous commits
    for (const ComputeLane& lane : topology().lanes) before.push_back(emitter_.record(*lane.stream));
    const auto& buffers = emitter_.memory().replica(first_device).buffers;
    for (const DeviceIndex d : topology().devices.indices()) {
        Stream& stream = topology().reduce(d);
        emitter_.wait(stream, before);
        emitter_.copy(stream, emitter_.memory().control(d).step_ref(), part_->carry->state(d));
        for (std::size_t a = 0; d == first_device && reduction_ && a < buffers.size(); ++a)
            emitter_.copy(stream, fixed(buffers[a]), part_->carry->in_copy(emitter_.memory(), fixed(buffers[a])));
        const int there = emitter_.record(stream);
        for (const ComputeLane& lane : topology().lanes)
            if (lane.device == d && has_rows(lane)) emitter_.wait(*lane.stream, there);
    }
}

void ScheduleBuilder::emit_denominators() {
    Stream& root = topology().reduce(first_device);
    const std::vector<MemoryRef> outputs = across_.emit_outputs(*this);
    const std::size_t count = batch_.full->outputs.size();
    for (std::size_t i = 0; i < count; ++i) {
        const TensorMeta meta = scalar(batch_.full->outputs[i].meta.dtype);
        std::vector<std::pair<int, int>> ranges;
        std::vector<MemoryRef> parts;
        for (int shard = 0; shard < batch_.cut.present; ++shard) {
            ranges.emplace_back(shard, shard + 1);
            parts.push_back(outputs[static_cast<std::size_t>(shard) * count + i]);
        }
        const std::vector<TensorMeta> metas(parts.size(), meta);
        emitter_.run_flat(root, first_device, make_operation(TreeSum{std::move(ranges), !part_->first, true}),
                          {metas, std::move(parts)}, {{meta}, {part_->carry->denominator(first_device, i)}});
    }
    if (!part_->last) return;
    const int summed = emitter_.record(root);
    for (const DeviceIndex d : topology().devices.others()) {
        emitter_.wait(topology().reduce(d), summed);
        for (std::size_t i = 0; i < count; ++i)
            emitter_.copy(topology().reduce(d), part_->carry->denominator(first_device, i),
                          part_->carry->denominator(d, i));
    }
}

void ScheduleBuilder::emit_loss_so_far() {
    if (!batch_.held.contains(0)) return;
    const MemoryRef sum = part_->carry->loss();
    const MemoryRef own = memory_.ref(0, batch_.of(0).loss);
    const TensorMeta meta = scalar(part_->carry->loss_dtype());
    Stream& stream = topology().compute(0);
    emit_sum_so_far(stream, meta.dtype, own, sum);
    if (!part_->carry->checks_loss()) return;
    TaskSpec check =
        emitter_.flat_task(stream, first_device, make_operation(CheckFinite{}), {{meta}, {sum}}, {{meta}, {sum}});
    check.status = emitter_.memory().control(first_device).shard(0);
    emitter_.run(stream, std::move(check));
}

void ScheduleBuilder::emit_sum_so_far(Stream& stream, DType dtype, const MemoryRef& part, const MemoryRef& sum) {
    const TensorMeta meta = scalar(dtype);
    if (part_->first)
        emitter_.schedule().copy(stream, {part, sum, sum.bytes});
    else
        emitter_.run_flat(stream, first_device, make_operation(Accumulate{}), {{meta, meta}, {sum, part}},
                          {{meta}, {sum}});
}

void ScheduleBuilder::emit_preparations() {
    Stream& stream = topology().reduce(first_device);
    emitter_.wait(stream, record_lanes());
    if (batch_.held.contains(0)) emit_commit_records(stream);
    if (part_->last) emitter_.wait(topology().commit(first_device), stream);
}

void ScheduleBuilder::emit_prepared_commits() {
    for (const auto& buffer : emitter_.memory().replica(first_device).buffers) {
        const MemoryRef arena = fixed(buffer);
        const TensorMeta bytes = bytes_meta(arena.bytes);
        emitter_.run_flat(topology().commit(first_device), first_device, make_operation(CommitIfOk{}),
                          {{bytes}, {across_.prepared(*this, arena)}}, {{bytes}, {arena}});
    }
    emit_copies_of_buffers();
}

void ScheduleBuilder::emit_end_of_microbatch() {
    Stream& root = topology().reduce(first_device);
    emitter_.wait(root, record_lanes());
    for (const DeviceIndex d : emitter_.reducing())
        if (d != first_device) emitter_.wait(root, topology().reduce(d));
    for (Stream* stream : topology().collective_streams) emitter_.wait(root, *stream);
    const int all = emitter_.record(root);
    for (const DeviceIndex d : topology().devices.indices()) {
        Stream& stream = topology().reduce(d);
        if (d != first_device) emitter_.wait(stream, all);
        TaskSpec advance = emitter_.flat_task(stream, d, make_operation(AdvanceStep{Counted::microbatch}), {},
                                              {{bytes_meta(sizeof(StepCounters))}, {part_->carry->state(d)}});
        advance.prepares = true;
        emitter_.run(stream, std::move(advance));
        if (d != first_device) emitter_.wait(root, stream);
    }
    const int end = emitter_.record(root);
    for (const ComputeLane& lane : topology().lanes) emitter_.wait(*lane.stream, end);
    for (const DeviceIndex d : topology().devices.others()) emitter_.wait(topology().reduce(d), end);
    for (Stream* stream : topology().collective_streams) emitter_.wait(*stream, end);
}

}  // namespace lockstep
