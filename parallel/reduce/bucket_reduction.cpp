#include "lockstep/parallel/reduce/bucket_reduction.h"

#include <algorithm>
#include <cstddef>

#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/parallel/schedule/schedule_builder.h"
#include "lockstep/runtime/internal/core_operations.h"

namespace lockstep {

namespace {

FirstNode first_node(AfterSum after) {
    switch (after) {
        case AfterSum::add:
        case AfterSum::add_and_update: return FirstNode::slots;
        case AfterSum::accumulate: return FirstNode::separate_root;
        case AfterSum::update:
        case AfterSum::keep: break;
    }
    return FirstNode::gradients;
}

}  // namespace

BucketReduction::BucketReduction(const Topology& topology, EngineMemory& memory, ReductionMemory& reduction,
                                 const BatchProgram& batch, BucketPlan plan, const ReductionSpec& spec)
    : topology_(topology),
      memory_(memory),
      reduction_(reduction),
      batch_(batch),
      plan_(std::move(plan)),
      spec_(spec),
      sums_(topology, memory, reduction, batch.cut.present, first_node(spec.after)),
      next_fold_(sums_.nodes().size(), 0) {
    if (spec.optimizer) update_.emplace(reduction, *spec.optimizer);
}

GradientPlan BucketReduction::plan(int shard, const ShardProgram& program) const {
    GradientPlan wanted;
    const GradientNode& node = sums_.node_of(shard);
    for (const Delivery& delivery : program.deliveries) {
        if (node.in_arena() && node.range.size() == 1) {
            const ArenaSegment& segment = memory_.store()->segment(delivery.parameter);
            const auto arena = static_cast<std::size_t>(delivery.parameter.arena);
            const std::size_t size = size_of(memory_.layout(delivery.parameter.arena).dtype);
            wanted.direct[delivery.gradient.buffer->trace_id()] = fixed(
                node.arenas[arena], static_cast<std::size_t>(segment.begin) * size, delivery.gradient.buffer->bytes());
        }
        long last = static_cast<long>(delivery.ready);
        if (!node.in_arena())  // its buckets are moved to a slot when they are ready, part by part
            for (std::size_t b = 0; b < plan_.buckets.size(); ++b)
                if (plan_.buckets[b].contains(delivery.parameter)) last = std::max(last, plan_.ready[b].full);
        // A longer shard of the same sum may be later in the order of records.
        wanted.kept.push_back(batch_.uneven() ? static_cast<long>(program.records.size()) : last);
    }
    return wanted;
}

MemoryRef BucketReduction::loss_scale(DeviceIndex device) const {
    return fixed(spec_.gate.scaler->state_on(topology_.devices[device]), offsetof(LossScale, scale),
                 sizeof(LossScale::scale));
}

void BucketReduction::emit_fold(ScheduleBuilder& builder, const GradientNode& node, ParameterId parameter,
                                std::int64_t begin, std::int64_t end, const MemoryRef& sum) {
    const DType dtype = memory_.layout(parameter.arena).dtype;
    const std::int64_t skipped = begin - memory_.store()->segment(parameter).begin;
    const TensorMeta flat = TensorMeta::contiguous(dtype, {end - begin});
    std::vector<std::pair<int, int>> ranges;
    std::vector<MemoryRef> parts;
    for (int shard = node.range.first; shard < node.range.last; ++shard) {
        ranges.emplace_back(shard, shard + 1);
        MemoryRef part = builder.memory().ref(shard, batch_.of(shard).delivery(parameter)->gradient);
        part.offset += static_cast<std::size_t>(skipped) * size_of(dtype);
        part.bytes = static_cast<std::size_t>(end - begin) * size_of(dtype);
        parts.push_back(part);
    }
    const std::vector<TensorMeta> flats(parts.size(), flat);
    builder.emitter().run_flat(*node.lane, node.device, make_operation(TreeSum{std::move(ranges), false}),
                               {flats, std::move(parts)}, {{flat}, {sum}});
}

void BucketReduction::emit_folds(ScheduleBuilder& builder, RecordPair done) {
    for (std::size_t n = 0; n < next_fold_.size(); ++n) {
        const GradientNode& node = sums_.nodes()[n];
        if (node.range.size() == 1 || !node.in_arena()) continue;
        const bool has_last = node.range.last == batch_.cut.end;
        const auto& deliveries = batch_.full->deliveries;
        for (; next_fold_[n] < deliveries.size(); ++next_fold_[n]) {
            const Delivery& delivery = deliveries[next_fold_[n]];
            const Delivery& of_last = *batch_.last->delivery(delivery.parameter);
            if (static_cast<long>(delivery.ready) > done.full ||
                (has_last && static_cast<long>(of_last.ready) > done.last))
                break;
            const ArenaSegment& segment = memory_.store()->segment(delivery.parameter);
            Bucket whole;
            whole.arena = delivery.parameter.arena;
            emit_fold(builder, node, delivery.parameter, segment.begin, segment.end,
                      sums_.ref(node, whole, 0, segment.begin, segment.end));
        }
    }
}

void BucketReduction::emit_bucket_folds(ScheduleBuilder& builder, const Bucket& bucket) {
    Emitter& emitter = builder.emitter();
    for (const GradientNode& node : sums_.nodes()) {
        if (!node.in_arena()) emitter.wait(*node.lane, read_[static_cast<std::size_t>(turn_)]);
        for (int i = bucket.first_segment; i < bucket.last_segment; ++i) {
            const ParameterId parameter{bucket.arena, i};
            const ArenaSegment& segment = memory_.store()->segment(parameter);
            const std::int64_t begin = std::max(bucket.begin, segment.begin);
            const std::int64_t end = std::min(bucket.end, segment.end);
            const MemoryRef sum = sums_.ref(node, bucket, turn_, begin, end);
            if (!batch_.full->delivery(parameter))
                emitter.run_flat(*node.lane, node.device, make_operation(Fill{0}), {},
                                 {{TensorMeta::contiguous(memory_.layout(bucket.arena).dtype, {end - begin})}, {sum}});
            else if (!node.in_arena())
                emit_fold(builder, node, parameter, begin, end, sum);
        }
    }
}

void BucketReduction::emit_ready(ScheduleBuilder& builder, RecordPair done) {
    emit_folds(builder, done);
    for (; number_ < static_cast<int>(plan_.buckets.size()); ++number_) {
        const RecordPair& ready = plan_.ready[static_cast<std::size_t>(number_)];
        if (ready.full > done.full || ready.last > done.last) return;
        const Bucket& bucket = plan_.buckets[static_cast<std::size_t>(number_)];
        last_ = number_ + 1 == static_cast<int>(plan_.buckets.size());
        emit_bucket_folds(builder, bucket);
        emit_bucket(builder.emitter(), bucket, builder.record_lanes());
    }
}

std::vector<int> BucketReduction::emit_combination(Emitter& emitter, const Bucket& bucket, std::vector<int> ready) {
    const std::vector<int> lanes = ready;
    for (const DeviceIndex d : IndexRange<DeviceIndex>(first_combined(), topology_.devices.size())) {
        bool combines = false;
        for (const DeviceNode& node : sums_.device_nodes()) {
            if (node.device != d || node.last - node.first < 2) continue;
            Stream& stream = emitter.reduce(d);
            if (!combines) emitter.wait(stream, lanes);
            combines = true;
            std::vector<std::pair<int, int>> shards;
            std::vector<MemoryRef> parts;
            for (std::size_t i = node.first; i < node.last; ++i) {
                shards.push_back(PartialSums::shards_of(sums_.nodes()[i]));
                parts.push_back(sums_.ref(sums_.nodes()[i], bucket, turn_, bucket.begin, bucket.end));
            }
            const TensorMeta flat = reduction_.flat(bucket);
            const std::vector<TensorMeta> flats(parts.size(), flat);
            const MemoryRef target = parts.front();
            emitter.run_flat(stream, d, make_operation(TreeSum{std::move(shards), false}), {flats, std::move(parts)},
                             {{flat}, {target}});
        }
        if (combines) ready.push_back(emitter.record(emitter.reduce(d)));
    }
    return ready;
}

void BucketReduction::emit_bucket(Emitter& emitter, const Bucket& bucket, const std::vector<int>& ready) {
    const std::vector<int> combined = emit_combination(emitter, bucket, ready);
    std::vector<int> read, updated;
    for (const DeviceIndex d : IndexRange<DeviceIndex>(0, by_slices() ? topology_.devices.size() : 1)) {
        const Bucket part = by_slices() ? reduction_.cut().slice(bucket, d) : bucket;
        memory_.store()->ensure_gradients(d);
        const MemoryRef target =
            spec_.after == AfterSum::accumulate ? reduction_.separate_root_sums(part) : reduction_.gradients(d, part);
        const std::vector<int> summed =
            part.elements() == 0 ? combined : emit_sum(emitter, d, bucket, part, target, combined);
        read.insert(read.end(), summed.begin(), summed.end());
        if (updates() || spec_.after == AfterSum::accumulate) {
            emitter.wait(topology_.commit(d), summed);
            emit_check(emitter);
        }
        if (!by_slices() || !updates_each_bucket()) continue;
        update_->emit_part(emitter, d, part);
        updated.push_back(emitter.record(topology_.commit(d)));
    }
    if (spec_.after == AfterSum::accumulate) emit_accumulation(emitter, bucket);
    if (updates_each_bucket())
        by_slices() ? update_->emit_gathering(emitter, bucket, updated) : update_->emit_bucket(emitter, bucket);
    if (sums_.uses_slots()) read_[static_cast<std::size_t>(turn_)] = std::move(read);
    turn_ = (turn_ + 1) % PartialSums::turns;
}

void BucketReduction::emit_accumulation(Emitter& emitter, const Bucket& bucket) {
    const TensorMeta flat = reduction_.flat(bucket);
    emitter.run_flat(topology_.commit(first_device), first_device,
                     make_operation(TreeSum{std::vector<std::pair<int, int>>{{0, topology_.shards}}, true}),
                     {{flat}, {reduction_.separate_root_sums(bucket)}},
                     {{flat}, {reduction_.gradients(first_device, bucket)}});
}

void BucketReduction::emit_end(ScheduleBuilder& builder) {
    if (!updates()) return;
    if (!spec_.gate.empty()) update_->emit_gate(builder.emitter(), spec_.gate, plan_.buckets);
    update_->emit_counts(builder.emitter(), plan_.buckets);
}

}  // namespace lockstep
