#include "lockstep/parallel/schedule/schedule_builder.h"

#include <algorithm>
#include <utility>

#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

namespace {

std::vector<std::size_t> spans_in(const ShardProgram& program, std::size_t first, std::size_t last) {
    std::vector<std::size_t> found;
    for (std::size_t i = first; i < last; ++i)
        if (is_cross_shard(program.records[i])) found.push_back(i);
    return found;
}

}  // namespace

/// Pairs records [first, last) of both programs, aligning those that span shards.
std::vector<RecordPair> ScheduleBuilder::pairs(std::size_t full_first, std::size_t full_last, std::size_t last_first,
                                               std::size_t last_last) const {
    std::vector<std::size_t> full_spans = spans_in(*batch_.full, full_first, full_last);
    std::vector<std::size_t> last_spans = spans_in(*batch_.last, last_first, last_last);
    full_spans.push_back(full_last);
    last_spans.push_back(last_last);
    std::vector<RecordPair> result;
    for (std::size_t i = 0; i < full_spans.size(); ++i) {
        while (full_first < full_spans[i] || last_first < last_spans[i]) {
            RecordPair pair;
            if (full_first < full_spans[i]) pair.full = static_cast<long>(full_first++);
            if (last_first < last_spans[i]) pair.last = static_cast<long>(last_first++);
            result.push_back(pair);
        }
        if (i + 1 < full_spans.size())
            result.push_back({static_cast<long>(full_first++), static_cast<long>(last_first++)});
    }
    return result;
}

std::vector<int> ScheduleBuilder::record_lanes() {
    std::vector<int> events;
    for (const ComputeLane& lane : topology().lanes)
        if (has_rows(lane)) events.push_back(emitter_.record(*lane.stream));
    return events;
}

std::vector<int> ScheduleBuilder::record_lanes_of(DeviceIndex device) {
    std::vector<int> events;
    for (const ComputeLane& lane : topology().lanes)
        if (lane.device == device && has_rows(lane)) events.push_back(emitter_.record(*lane.stream));
    return events;
}

const Record& ScheduleBuilder::record_of(int shard, RecordPair records) const {
    const long number = batch_.cut.is_last(shard) ? records.last : records.full;
    return batch_.of(shard).records[static_cast<std::size_t>(number)];
}

bool ScheduleBuilder::draws_numbers() const {
    const std::vector<Record>& records = batch_.full->records;
    return std::any_of(records.begin(), records.end(),
                       [](const Record& record) { return record.operation->is_random(); });
}

TaskSpec ScheduleBuilder::bare_task(DeviceIndex replica, const Record& record) const {
    TaskSpec task;
    task.operation = record.operation;
    task.call = record.call;
    task.kernel = kernel_on(record, topology().devices[replica]);
    task.replica = replica;
    const ControlBlock& control = emitter_.memory().control(replica);
    task.step = part_ ? part_->carry->step(replica) : control.step();
    task.agreed = control.agreed();
    task.health = emitter_.memory().health().get();
    // The forward that only pools the weights of microbatches draws what their training forwards draw.
    const bool infers = batch_.pass == Pass::inference && !part_;
    task.ordinal = record.ordinal | (infers ? inference_ordinals : 0);
    return task;
}

TaskSpec ScheduleBuilder::task_of(int shard, const Record& record, bool forward) const {
    TaskSpec task = bare_task(topology().replica_of(shard), record);
    for (const Operand& operand : record.in) task.in.push_back(memory_.ref(shard, operand));
    for (const Operand& operand : record.out) task.out.push_back(memory_.ref(shard, operand));
    task.scratch = memory_.scratch(shard, task.kernel->scratch_bytes());
    task.status = forward ? emitter_.memory().control(task.replica).shard(shard) : nullptr;
    task.shard = shard;
    task.first_row = batch_.cut.first_row(shard);
    return task;
}

void ScheduleBuilder::emit_across_shards(RecordPair records) {
    std::vector<MemoryRef> inputs = across_.emit_inputs(*this, records);
    if (batch_.held.empty()) return;
    const int anchor = batch_.held.first;  // the record's results are the same for all shards
    Stream& root = topology().compute(anchor);
    const bool forward =
        (batch_.cut.is_last(anchor) ? records.last : records.full) < static_cast<long>(batch_.of(anchor).commit_begin);
    TaskSpec task = task_of(anchor, record_of(anchor, records), forward);
    task.shards = batch_.cut.present;
    task.in = std::move(inputs);
    const std::vector<MemoryRef> results = task.out;
    emitter_.run(root, std::move(task));
    const int done = emitter_.record(root);
    for (const ComputeLane& lane : topology().lanes)
        if (has_rows(lane) && lane.stream != &root) emitter_.wait(*lane.stream, done);
    for (int shard = anchor + 1; shard < batch_.held.last; ++shard)
        for (std::size_t i = 0; i < results.size(); ++i)
            emitter_.copy(topology().compute(shard), results[i], memory_.ref(shard, record_of(shard, records).out[i]));
}

void ScheduleBuilder::emit_records(RecordPair records) {
    if (records.full >= 0 && is_cross_shard(batch_.full->records[static_cast<std::size_t>(records.full)]))
        return emit_across_shards(records);
    for (int shard = batch_.held.first; shard < batch_.held.last; ++shard) {
        const long number = batch_.cut.is_last(shard) ? records.last : records.full;
        if (number < 0) continue;
        const bool forward = static_cast<std::size_t>(number) < batch_.of(shard).commit_begin;
        emitter_.run(topology().compute(shard), task_of(shard, record_of(shard, records), forward));
    }
}

void ScheduleBuilder::emit_loss_scale() {
    for (int shard = batch_.held.first; shard < batch_.held.last; ++shard)
        if (const Operand& scale = batch_.of(shard).loss_scale; scale.buffer)
            emitter_.copy(topology().compute(shard), reduction_->loss_scale(topology().replica_of(shard)),
                          memory_.ref(shard, scale));
}

void ScheduleBuilder::emit_casts(Stream& stream, DeviceIndex device, int set, const std::vector<CastRange>& ranges) {
    EngineMemory& memory = emitter_.memory();
    FlatOperands in, out;
    const auto add = [](FlatOperands& side, const TensorMeta& meta, const std::shared_ptr<Buffer>& arena,
                        std::int64_t begin) {
        side.metas.push_back(meta);
        side.refs.push_back(fixed(arena, static_cast<std::size_t>(begin) * size_of(meta.dtype), meta.bytes()));
    };
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        const CastRange& range = ranges[i];
        const Shape shape = range.arranged ? range.arranged->shape : Shape{range.end - range.begin};
        add(in, TensorMeta::contiguous(memory.layout(range.arena).dtype, shape),
            memory.replica(device).parameters[static_cast<std::size_t>(range.arena)], range.begin);
        add(out, range.arranged.value_or(TensorMeta::contiguous(range.dtype, shape)),
            memory.casts(stream, range.arena, range.dtype, set), range.begin);
        const bool ends =
            i + 1 == ranges.size() || ranges[i + 1].arena != range.arena || ranges[i + 1].dtype != range.dtype;
        if (!ends) continue;
        emitter_.run_flat(stream, device, make_operation(CastParameters{}), std::exchange(in, {}),
                          std::exchange(out, {}));
    }
}

void ScheduleBuilder::emit_parameter_casts() {
    const ShardProgram &full = *batch_.full, &last = *batch_.last;
    const std::vector<ArenaLayout>& arenas = emitter_.memory().store()->parameters();
    std::vector<std::vector<CastRange>> sets;
    if (casts_agree(full, last))
        sets = {cast_ranges({&full, &last}, arenas)};
    else
        sets = {cast_ranges({&full}, arenas), cast_ranges({&last}, arenas)};
    if (full.casts.empty() && last.casts.empty()) return;
    int done = -1;
    for (const ComputeLane& lane : topology().lanes) {
        if (!has_rows(lane)) continue;
        if (lane.stream != &topology().first_compute(lane.device)) {
            emitter_.wait(*lane.stream, done);
            continue;
        }
        for (std::size_t set = 0; set < sets.size(); ++set)
            emit_casts(*lane.stream, lane.device, static_cast<int>(set), sets[set]);
        done = emitter_.record(*lane.stream);
    }
}

void ScheduleBuilder::emit_forward() {
    emit_parameter_casts();
    emit_loss_scale();
    for (const RecordPair& records : pairs(0, batch_.full->commit_begin, 0, batch_.last->commit_begin))
        emit_records(records);
}

void ScheduleBuilder::emit_backward() {
    const ShardProgram &full = *batch_.full, &last = *batch_.last;
    RecordPair done{static_cast<long>(full.backward_begin) - 1, static_cast<long>(last.backward_begin) - 1};
    for (const RecordPair& records :
         pairs(full.backward_begin, full.records.size(), last.backward_begin, last.records.size())) {
        emit_records(records);
        done = {std::max(done.full, records.full), std::max(done.last, records.last)};
        reduction_->emit_ready(*this, done);
    }
    // Everything has been emitted, so neither program waits for records that it does not have.
    reduction_->emit_ready(*this, {static_cast<long>(full.records.size()), static_cast<long>(last.records.size())});
    reduction_->emit_end(*this);
}

void ScheduleBuilder::emit_agreement(int shards) {
    Stream& root = topology().commit(first_device);
    const TensorMeta word = bytes_meta(sizeof(StatusWord));
    std::vector<MemoryRef> words = across_.emit_statuses(*this, shards);
    const std::vector<TensorMeta> metas(words.size(), word);
    const MemoryRef agreed = emitter_.memory().control(first_device).agreed_ref();
    emitter_.run_flat(root, first_device, make_operation(AgreeStatus{}), {metas, std::move(words)}, {{word}, {agreed}});
    const int event = emitter_.record(root);
    for (const DeviceIndex d : topology().devices.others()) {
        emitter_.wait(topology().commit(d), event);
        emitter_.copy(topology().commit(d), agreed, emitter_.memory().control(d).agreed_ref());
    }
}

void ScheduleBuilder::emit_commits() {
    emit_commit_records(topology().commit(first_device));
    emit_copies_of_buffers();
}

void ScheduleBuilder::emit_commit_records(Stream& stream) {
    const ShardProgram& program = batch_.of(0);
    for (std::size_t i = program.commit_begin; i < program.backward_begin; ++i) {
        TaskSpec task = part_ ? task_of(0, program.records[i], false) : across_.commit_task(*this, program.records[i]);
        if (part_) {
            task.prepares = true;
            for (auto* side : {&task.in, &task.out})
                for (MemoryRef& ref : *side) ref = part_->carry->in_copy(emitter_.memory(), ref);
        }
        if (task.scratch.workspace >= 0)  // the shard's own scratch memory is in use on its lane
            task.scratch = fixed(emitter_.memory().scratch(stream, task.scratch.bytes), 0, task.scratch.bytes);
        emitter_.run(stream, std::move(task));
    }
}

void ScheduleBuilder::emit_copies_of_buffers() {
    const int event = emitter_.record(topology().commit(first_device));
    for (const DeviceIndex d : topology().devices.others()) {
        Stream& stream = topology().commit(d);
        emitter_.wait(stream, event);
        const auto &from = emitter_.memory().replica(first_device).buffers, &to = emitter_.memory().replica(d).buffers;
        for (std::size_t a = 0; a < from.size(); ++a) emitter_.copy(stream, fixed(from[a]), fixed(to[a]));
    }
}

void ScheduleBuilder::emit_loss() {
    const MemoryRef kept = emitter_.memory().control(first_device).loss_ref(batch_.of(0).loss.meta.dtype);
    emitter_.schedule().copy(topology().commit(first_device), {across_.loss(*this), kept, kept.bytes});
}

void ScheduleBuilder::emit_squares() {
    if (batch_.held.empty()) return;
    const int anchor = batch_.held.first;  // all shards have the sum
    const Operand& squares = batch_.of(anchor).squares;
    if (!squares.buffer) return;
    Stream& lane = topology().compute(anchor);
    MemoryRef sum = memory_.ref(anchor, squares);
    if (part_) {
        emit_sum_so_far(lane, squares.meta.dtype, sum, part_->carry->squares());
        sum = part_->carry->squares();
        if (!part_->last) return;
    }
    Stream& commit = topology().commit(first_device);
    emitter_.wait(commit, lane);
    emitter_.copy(commit, sum, emitter_.memory().control(first_device).shard_squares_ref());
}

void ScheduleBuilder::emit_advance(DeviceIndex device, Counted counted) {
    emitter_.run_flat(topology().commit(device), device, make_operation(AdvanceStep{counted}), {},
                      {{bytes_meta(sizeof(StepCounters))}, {emitter_.memory().control(device).step_ref()}});
    if (counted == Counted::step && reduction_ && reduction_->may_skip()) emit_forgetting_of_skip(device);
}

void ScheduleBuilder::emit_forgetting_of_skip(DeviceIndex device) {
    Stream& stream = topology().commit(device);
    const MemoryRef agreed = emitter_.memory().control(device).agreed_ref();
    if (device == first_device) {
        emitter_.copy(stream, agreed, emitter_.memory().control(first_device).outcome_ref());
        for (const DeviceIndex d : topology().devices.others())  // they copy the agreed word from here
            emitter_.wait(stream, topology().commit(d));
    }
    emitter_.run_flat(stream, device, make_operation(ClearSkipFlag{}), {},
                      {{bytes_meta(sizeof(StatusWord))}, {agreed}});
}

void ScheduleBuilder::emit_barrier(std::optional<Counted> counted) {
    Stream& root = topology().commit(first_device);
    emitter_.wait(root, record_lanes());
    for (const DeviceIndex d : emitter_.reducing()) emitter_.wait(root, topology().reduce(d));
    const int all = emitter_.record(root);
    for (const DeviceIndex d : topology().devices.indices()) {
        Stream& stream = topology().commit(d);
        if (d != first_device) emitter_.wait(stream, all);
        if (counted) emit_advance(d, *counted);
        const int own = emitter_.record(stream);
        if (d != first_device) emitter_.wait(root, own);
    }
    const int end = emitter_.record(root);
    for (const ComputeLane& lane : topology().lanes) emitter_.wait(*lane.stream, end);
    for (const DeviceIndex d : emitter_.reducing()) emitter_.wait(topology().reduce(d), end);
    for (const DeviceIndex d : topology().devices.others()) emitter_.wait(topology().commit(d), end);
    for (Stream* stream : topology().collective_streams) emitter_.wait(*stream, end);
}

void ScheduleBuilder::emit_end_of_step() {
    // Sums need no separate wait: updates and copies to a device follow them.
    std::vector<int> committed;
    for (const DeviceIndex d : topology().devices.indices()) {
        emitter_.wait(topology().commit(d), record_lanes_of(d));
        emit_advance(d, Counted::step);
        committed.push_back(emitter_.record(topology().commit(d)));
    }
    // The owner of the model may write replica 0 on its device's stream, which waits for all streams that copy from it.
    for (const ComputeLane& lane : topology().lanes)
        for (const DeviceIndex d : topology().devices.indices())
            if (lane.device == d || lane.device == first_device) emitter_.wait(*lane.stream, at(committed, d));
    for (const DeviceIndex d : topology().devices.others())
        emitter_.wait(topology().commit(first_device), at(committed, d));
    for (Stream* stream : topology().collective_streams) emitter_.wait(*stream, committed[0]);
}

}  // namespace lockstep
