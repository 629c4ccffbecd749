#include "lockstep/parallel/schedule/program_placer.h"

#include <algorithm>
#include <set>

#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

namespace {

const Delivery* find_delivery(const ShardProgram& program, int arena, int segment) {
    for (const Delivery& delivery : program.deliveries)
        if (delivery.arena == arena && delivery.segment == segment) return &delivery;
    return nullptr;
}

std::vector<std::size_t> spans_in(const ShardProgram& program, std::size_t first, std::size_t last) {
    std::vector<std::size_t> found;
    for (std::size_t i = first; i < last; ++i)
        if (program.records[i].operation->span() == Span::all_shards) found.push_back(i);
    return found;
}

}  // namespace

ProgramPlacer::ProgramPlacer(PlacedProgram& placed, EngineContext& context, UpdatePlan update)
    : placed_(placed),
      context_(context),
      batch_(placed.batch()),
      schedule_(placed.schedule_),
      update_(update),
      reducer_(context, placed.sums_ ? &*placed.sums_ : nullptr, update, placed.schedule_),
      next_fold_(placed.sums_ ? placed.sums_->nodes().size() : 0, 0) {
    commits_ = batch_.full->backward_begin > batch_.full->commit_begin;
}

std::vector<ProgramPlacer::Turn> ProgramPlacer::turns(std::size_t full_first, std::size_t full_last,
                                                      std::size_t last_first, std::size_t last_last) const {
    std::vector<std::size_t> full_spans = spans_in(*batch_.full, full_first, full_last);
    std::vector<std::size_t> last_spans = spans_in(*batch_.last, last_first, last_last);
    full_spans.push_back(full_last);
    last_spans.push_back(last_last);
    std::vector<Turn> result;
    for (std::size_t i = 0; i < full_spans.size(); ++i) {
        while (full_first < full_spans[i] || last_first < last_spans[i]) {
            Turn turn;
            if (full_first < full_spans[i]) turn.full = static_cast<long>(full_first++);
            if (last_first < last_spans[i]) turn.last = static_cast<long>(last_first++);
            result.push_back(turn);
        }
        if (i + 1 < full_spans.size())
            result.push_back({static_cast<long>(full_first++), static_cast<long>(last_first++)});
    }
    return result;
}

long ProgramPlacer::index_of(const Turn& turn, int shard) const {
    return batch_.cut.is_last(shard) ? turn.last : turn.full;
}

std::vector<int> ProgramPlacer::lanes_with_shards() const {
    std::vector<int> lanes;
    for (std::size_t lane = 0; lane < context_.lanes.size(); ++lane)
        if (!context_.lanes[lane].shards.among(batch_.cut.present).empty()) lanes.push_back(static_cast<int>(lane));
    return lanes;
}

std::vector<int> ProgramPlacer::record_lanes() {
    std::vector<int> events;
    for (const int lane : lanes_with_shards()) events.push_back(schedule_.record(context_.compute(lane)));
    return events;
}

TaskSpec ProgramPlacer::bare_task(int replica, const Record& record) const {
    TaskSpec task;
    task.operation = record.operation;
    task.call = record.call;
    task.kernel = kernel_on(record, context_.devices[replica]);
    task.replica = replica;
    const ControlBlock& control = context_.control[static_cast<std::size_t>(replica)];
    task.step = batch_.micro.carry ? batch_.micro.carry->step(replica) : control.step();
    task.agreed = control.agreed();
    task.health = context_.health.get();
    task.ordinal = record.ordinal;
    return task;
}

TaskSpec ProgramPlacer::task_of(int shard, const Record& record, bool forward) const {
    TaskSpec task = bare_task(placed_.memory_.replica_of(shard), record);
    for (const Operand& operand : record.in) task.in.push_back(placed_.memory_.place(shard, operand));
    for (const Operand& operand : record.out) task.out.push_back(placed_.memory_.place(shard, operand));
    task.scratch = placed_.memory_.scratch(shard, task.kernel->scratch_bytes());
    task.status = forward ? context_.control[static_cast<std::size_t>(task.replica)].shard(shard) : nullptr;
    task.shard = shard;
    task.first_row = batch_.cut.first_row(shard);
    return task;
}

void ProgramPlacer::place_record(int shard, const Record& record, bool forward) {
    schedule_.run(context_.compute(context_.lane_of(shard)), task_of(shard, record, forward));
}

void ProgramPlacer::place_span(const Turn& turn) {
    std::vector<PlaceRef> given;
    if (context_.job) given = gathered_over_ranks(turn);
    if (batch_.held.empty()) return;
    const int anchor = batch_.held.first;  // what the record makes is the same for all shards
    const int root_lane = context_.lane_of(anchor);
    Stream& root = context_.compute(root_lane);
    for (const int lane : lanes_with_shards())
        if (lane != root_lane) schedule_.wait(root, schedule_.record(context_.compute(lane)));
    const auto record_of = [&](int shard) -> const Record& {
        return batch_.of(shard).records[static_cast<std::size_t>(index_of(turn, shard))];
    };
    const bool forward = index_of(turn, anchor) < static_cast<long>(batch_.of(anchor).commit_begin);
    TaskSpec task = task_of(anchor, record_of(anchor), forward);
    task.shards = batch_.cut.present;
    for (int shard = 1; !context_.job && shard < batch_.cut.present; ++shard)
        for (const Operand& operand : record_of(shard).in)
            task.in.push_back(readable_on(schedule_, root, placed_.memory_.place(shard, operand)));
    if (context_.job) task.in = std::move(given);
    const std::vector<PlaceRef> results = task.out;
    schedule_.run(root, std::move(task));
    const int done = schedule_.record(root);
    for (const int lane : lanes_with_shards())
        if (lane != root_lane) schedule_.wait(context_.compute(lane), done);
    for (int shard = anchor + 1; shard < batch_.held.last; ++shard)
        for (std::size_t i = 0; i < results.size(); ++i)
            schedule_.copy(context_.compute(context_.lane_of(shard)),
                           {results[i], placed_.memory_.place(shard, record_of(shard).out[i]), results[i].bytes});
}

void ProgramPlacer::place_turn(const Turn& turn) {
    if (turn.full >= 0 &&
        batch_.full->records[static_cast<std::size_t>(turn.full)].operation->span() == Span::all_shards) {
        place_span(turn);
    } else {
        for (int shard = batch_.held.first; shard < batch_.held.last; ++shard)
            if (const long index = index_of(turn, shard); index >= 0)
                place_record(shard, batch_.of(shard).records[static_cast<std::size_t>(index)],
                             static_cast<std::size_t>(index) < batch_.of(shard).commit_begin);
    }
    done_.full = std::max(done_.full, turn.full);
    done_.last = std::max(done_.last, turn.last);
}

void ProgramPlacer::place_agreement() {
    Stream& root = context_.commit(0);
    if (context_.job) {
        place_report_of_ranks();
        place_exchange_check(context_, schedule_, false);  // first: a report that has not come says nothing
    } else {
        for (const int event : record_lanes()) schedule_.wait(root, event);
    }
    const TensorMeta word = TensorMeta::contiguous(DType::u8, {sizeof(StatusWord)});
    std::vector<PlaceRef> words;
    for (int shard = 0; shard < std::max(batch_.cut.present, batch_.micro.present); ++shard) {
        if (context_.job) {
            const int rank = context_.rank_of(shard);
            const int before = shard - context_.held_by(rank, context_.shards).first;
            words.push_back(
                report_.parts->at(rank, ControlBlock::spacing * static_cast<std::size_t>(before), sizeof(StatusWord)));
            continue;
        }
        const ControlBlock& control = context_.control[static_cast<std::size_t>(placed_.memory_.replica_of(shard))];
        PlaceRef own = control.statuses({shard, shard + 1});
        own.bytes = sizeof(StatusWord);
        words.push_back(readable_on(schedule_, root, own));
    }
    const PlaceRef agreed = context_.control[0].agreed_place();
    const std::vector<TensorMeta> metas(words.size(), word);
    schedule_.run(
        root, flat_task(context_, root, 0, make_operation(AgreeStatus{}), metas, std::move(words), {word}, {agreed}));
    const int event = schedule_.record(root);
    for (int d = 1; d < context_.devices.size(); ++d) {
        Stream& stream = context_.commit(d);
        schedule_.wait(stream, event);
        schedule_.copy(stream,
                       {agreed, context_.control[static_cast<std::size_t>(d)].agreed_place(), sizeof(StatusWord)});
    }
}

void ProgramPlacer::place_commits() {
    Stream& root = context_.commit(0);
    if (batch_.micro.carry)
        place_taking_over();
    else
        place_commit_records(root);
    const int event = schedule_.record(root);
    const std::vector<Replica>& replicas = context_.store->replicas();
    for (int d = 1; d < context_.devices.size(); ++d) {
        Stream& stream = context_.commit(d);
        schedule_.wait(stream, event);
        for (std::size_t a = 0; a < replicas[0].buffers.size(); ++a)
            schedule_.copy(stream,
                           {fixed(replicas[0].buffers[a], 0, replicas[0].buffers[a]->bytes()),
                            fixed(replicas[static_cast<std::size_t>(d)].buffers[a], 0, replicas[0].buffers[a]->bytes()),
                            replicas[0].buffers[a]->bytes()});
    }
}

void ProgramPlacer::place_commit_records(Stream& root) {
    const ShardProgram& program = batch_.of(0);
    const MicroStep& micro = batch_.micro;
    for (std::size_t i = program.commit_begin; i < program.backward_begin; ++i) {
        const Record& record = program.records[i];
        TaskSpec task = context_.job ? commit_task_of_ranks(record) : task_of(0, record, false);
        task.prepares = micro.carry != nullptr;
        for (auto* side : {&task.in, &task.out})
            for (PlaceRef& place : *side)
                if (micro.carry) place = micro.carry->in_copy(context_, place);
        if (task.scratch.workspace >= 0)  // the shard's own scratch is in use on its lane
            task.scratch = fixed(context_.scratch(root, task.scratch.bytes), 0, task.scratch.bytes);
        schedule_.run(root, std::move(task));
    }
}

void ProgramPlacer::place_fold(const GradientNode& node, int arena, int segment, std::int64_t begin, std::int64_t end,
                               const PlaceRef& sum) {
    const ArenaLayout& layout = context_.store->parameters()[static_cast<std::size_t>(arena)];
    const std::size_t size = size_of(layout.dtype);
    const std::int64_t skipped = begin - layout.segments[static_cast<std::size_t>(segment)].begin;
    const TensorMeta flat = TensorMeta::contiguous(layout.dtype, {end - begin});
    std::vector<std::pair<int, int>> ranges;
    std::vector<PlaceRef> parts;
    for (int shard = node.range.first; shard < node.range.last; ++shard) {
        ranges.emplace_back(shard, shard + 1);
        PlaceRef part = placed_.memory_.place(shard, find_delivery(batch_.of(shard), arena, segment)->gradient);
        part.offset += static_cast<std::size_t>(skipped) * size;
        part.bytes = static_cast<std::size_t>(end - begin) * size;
        parts.push_back(part);
    }
    const std::vector<TensorMeta> flats(parts.size(), flat);
    Stream& stream = context_.compute(node.lane);
    schedule_.run(stream, flat_task(context_, stream, node.device, make_operation(TreeSum{std::move(ranges), false}),
                                    flats, std::move(parts), {flat}, {sum}));
}

void ProgramPlacer::place_folds(const Turn& done) {
    for (std::size_t n = 0; n < next_fold_.size(); ++n) {
        const GradientNode& node = placed_.sums_->nodes()[n];
        if (node.range.size() == 1 || !node.in_arena()) continue;
        const bool has_last = node.range.last == batch_.cut.end;
        const auto& deliveries = batch_.full->deliveries;
        for (; next_fold_[n] < deliveries.size(); ++next_fold_[n]) {
            const Delivery& delivery = deliveries[next_fold_[n]];
            const Delivery& of_last = *find_delivery(*batch_.last, delivery.arena, delivery.segment);
            if (static_cast<long>(delivery.ready) > done.full ||
                (has_last && static_cast<long>(of_last.ready) > done.last))
                break;
            const ArenaLayout& arena = context_.store->parameters()[static_cast<std::size_t>(delivery.arena)];
            const ArenaSegment& segment = arena.segments[static_cast<std::size_t>(delivery.segment)];
            const std::size_t size = size_of(arena.dtype);
            place_fold(node, delivery.arena, delivery.segment, segment.begin, segment.end,
                       fixed(node.arenas[static_cast<std::size_t>(delivery.arena)],
                             static_cast<std::size_t>(segment.begin) * size,
                             static_cast<std::size_t>(segment.end - segment.begin) * size));
        }
    }
}

void ProgramPlacer::place_in_sums(const Bucket& bucket) {
    const ArenaLayout& layout = context_.store->parameters()[static_cast<std::size_t>(bucket.arena)];
    for (const GradientNode& node : placed_.sums_->nodes()) {
        if (!node.in_arena()) reducer_.wait_for_slots(context_.compute(node.lane));
        for (int i = bucket.first_segment; i < bucket.last_segment; ++i) {
            const std::int64_t begin = std::max(bucket.begin, layout.segments[static_cast<std::size_t>(i)].begin);
            const std::int64_t end = std::min(bucket.end, layout.segments[static_cast<std::size_t>(i)].end);
            const PlaceRef sum = placed_.sums_->place(node, bucket, reducer_.turn(), begin, end);
            if (!find_delivery(*batch_.full, bucket.arena, i))
                place_zeros(node, layout.dtype, end - begin, sum);
            else if (!node.in_arena())
                place_fold(node, bucket.arena, i, begin, end, sum);
        }
    }
}

void ProgramPlacer::place_zeros(const GradientNode& node, DType dtype, std::int64_t elements, const PlaceRef& sum) {
    Stream& stream = context_.compute(node.lane);
    schedule_.run(stream, flat_task(context_, stream, node.device, make_operation(Fill{0}), {}, {},
                                    {TensorMeta::contiguous(dtype, {elements})}, {sum}));
}

void ProgramPlacer::place_buckets(const Turn& done) {
    for (; next_bucket_ < placed_.buckets_.size(); ++next_bucket_) {
        const Readiness& ready = placed_.ready_[next_bucket_];
        if (ready.full > done.full || ready.last > done.last) return;
        const Bucket& bucket = placed_.buckets_[next_bucket_];
        place_in_sums(bucket);
        reducer_.reduce(bucket, record_lanes(), next_bucket_ + 1 == placed_.buckets_.size());
    }
}

void ProgramPlacer::place_barrier(bool advances, bool whole_step) {
    Stream& root = context_.commit(0);
    for (const int event : record_lanes()) schedule_.wait(root, event);
    for (const int d : reducer_.communicating()) schedule_.wait(root, schedule_.record(context_.communicate(d)));
    const int all = schedule_.record(root);
    for (int d = 0; d < context_.devices.size(); ++d) {
        Stream& stream = context_.commit(d);
        if (d > 0) schedule_.wait(stream, all);
        if (advances) place_advance(d, whole_step);
        const int own = schedule_.record(stream);
        if (d > 0) schedule_.wait(root, own);
    }
    const int end = schedule_.record(root);
    for (std::size_t lane = 0; lane < context_.lanes.size(); ++lane)
        schedule_.wait(context_.compute(static_cast<int>(lane)), end);
    for (const int d : reducer_.communicating()) schedule_.wait(context_.communicate(d), end);
    for (int d = 1; d < context_.devices.size(); ++d) schedule_.wait(context_.commit(d), end);
    if (context_.job) schedule_.wait(context_.exchange(), end);
}

void ProgramPlacer::place_advance(int device, bool whole_step) {
    const TensorMeta state = TensorMeta::contiguous(DType::u8, {sizeof(StepState)});
    Stream& stream = context_.commit(device);
    schedule_.run(
        stream, flat_task(context_, stream, device, make_operation(AdvanceStep{whole_step}), {}, {}, {state},
                          {fixed(context_.control[static_cast<std::size_t>(device)].memory(), 0, sizeof(StepState))}));
    if (whole_step && update_.gate.skip_nonfinite) place_forgetting_of_skip(device);
}

void ProgramPlacer::place_forgetting_of_skip(int device) {
    Stream& stream = context_.commit(device);
    const PlaceRef agreed = context_.control[static_cast<std::size_t>(device)].agreed_place();
    if (device == 0) {
        schedule_.copy(stream, {agreed, context_.control[0].outcome_place(), agreed.bytes});
        for (int d = 1; d < context_.devices.size(); ++d)  // they copy what is agreed on from here
            schedule_.wait(stream, schedule_.record(context_.commit(d)));
    }
    const TensorMeta word = TensorMeta::contiguous(DType::u8, {sizeof(StatusWord)});
    schedule_.run(stream, flat_task(context_, stream, device, make_operation(ForgetSkip{}), {}, {}, {word}, {agreed}));
}

void ProgramPlacer::place_loss_of_step() {
    const Operand& own = batch_.of(0).loss;
    const std::size_t bytes = size_of(own.meta.dtype);
    const PlaceRef loss = context_.job ? report_.parts->at(0, report_.loss, bytes) : placed_.memory_.place(0, own);
    schedule_.copy(context_.commit(0), {loss, context_.control[0].loss_place(own.meta.dtype), bytes});
}

void ProgramPlacer::place_end_of_step() {
    // Sums need no wait of their own: what was updated or copied to a device comes after them.
    std::vector<int> committed;
    for (int d = 0; d < context_.devices.size(); ++d) {
        for (const int lane : lanes_with_shards())
            if (context_.lanes[static_cast<std::size_t>(lane)].device == d)
                schedule_.wait(context_.commit(d), schedule_.record(context_.compute(lane)));
        place_advance(d, true);
        committed.push_back(schedule_.record(context_.commit(d)));
    }
    // Replica 0 may be written by whoever holds the model, on its device's stream: that waits for all who copy from it.
    for (std::size_t lane = 0; lane < context_.lanes.size(); ++lane)
        for (int d = 0; d < context_.devices.size(); ++d)
            if (context_.lanes[lane].device == d || context_.lanes[lane].device == 0)
                schedule_.wait(context_.compute(static_cast<int>(lane)), committed[static_cast<std::size_t>(d)]);
    for (int d = 1; d < context_.devices.size(); ++d)
        schedule_.wait(context_.commit(0), committed[static_cast<std::size_t>(d)]);
    if (context_.job) schedule_.wait(context_.exchange(), committed[0]);
}

void ProgramPlacer::place() {
    const ShardProgram& full = *batch_.full;
    const ShardProgram& last = *batch_.last;
    const MicroStep& micro = batch_.micro;
    if (micro.carry) place_what_is_carried();
    for (const Turn& turn : turns(0, full.commit_begin, 0, last.commit_begin)) place_turn(turn);
    if (micro.weighs) place_weights();
    if (micro.carry && !micro.weighs) place_loss();
    if (micro.carry && commits_) place_preparations();
    if (batch_.pass != Pass::inference && micro.last) place_agreement();
    const bool separate = batch_.pass != Pass::step;
    const bool ordinary_step = !separate && !micro.carry;
    if (ordinary_step) place_loss_of_step();
    if (commits_ && separate && batch_.pass != Pass::inference) place_commits();
    if (micro.weighs)
        place_end_of_micro_step();
    else if (separate)
        place_barrier(batch_.pass != Pass::inference, false);
    placed_.forward_end_ = schedule_.size();
    if (batch_.pass != Pass::training && batch_.pass != Pass::step) return;

    done_ = {static_cast<long>(full.backward_begin) - 1, static_cast<long>(last.backward_begin) - 1};
    for (const Turn& turn : turns(full.backward_begin, full.records.size(), last.backward_begin, last.records.size())) {
        place_turn(turn);
        place_folds(done_);
        place_buckets(done_);
    }
    // Everything has been placed: what one program lacks the other does not wait for.
    const Turn everything{static_cast<long>(full.records.size()), static_cast<long>(last.records.size())};
    place_folds(everything);
    place_buckets(everything);
    reducer_.finish(placed_.buckets_);
    // Nobody waits for buffers: a kernel of backward that throws, and a step that is skipped, find them as they were.
    if (commits_ && !separate && micro.last) place_commits();
    if (ordinary_step)
        place_end_of_step();
    else if (micro.last)
        place_barrier(batch_.pass == Pass::step && update_.optimizer, true);
    else
        place_end_of_micro_step();
}

}  // namespace lockstep
