#include "lockstep/parallel/internal/reducer.h"

#include <algorithm>

#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/parallel/internal/placed_program.h"

namespace lockstep {

namespace {

std::size_t element_size(const EngineContext& context, const Bucket& bucket) {
    return size_of(context.store->parameters()[static_cast<std::size_t>(bucket.arena)].dtype);
}

DType dtype_of_bucket(const EngineContext& context, const Bucket& bucket) {
    return context.store->parameters()[static_cast<std::size_t>(bucket.arena)].dtype;
}

/// The part of `bucket` that device `index` of `count` sums and updates. Parts begin at multiples of 64 elements.
Bucket slice_of(const Bucket& bucket, int index, int count, const ArenaLayout& arena) {
    constexpr std::int64_t grain = 64;
    const std::int64_t grains = (bucket.whole_end - bucket.whole_begin + grain - 1) / grain;
    const auto cut = [&](int i) {
        return std::clamp(bucket.whole_begin + grains * i / count * grain, bucket.begin, bucket.end);
    };
    Bucket part = bucket;
    part.begin = cut(index);
    part.end = index + 1 == count ? bucket.end : cut(index + 1);
    while (part.first_segment + 1 < bucket.last_segment &&
           arena.segments[static_cast<std::size_t>(part.first_segment)].end <= part.begin)
        ++part.first_segment;
    while (part.last_segment - 1 > part.first_segment &&
           arena.segments[static_cast<std::size_t>(part.last_segment - 1)].begin >= part.end)
        --part.last_segment;
    return part;
}

/// The range of `bucket` in `memory`.
PlaceRef range(const EngineContext& context, const std::shared_ptr<Buffer>& memory, const Bucket& bucket) {
    const std::size_t size = element_size(context, bucket);
    return fixed(memory, static_cast<std::size_t>(bucket.begin) * size,
                 static_cast<std::size_t>(bucket.end - bucket.begin) * size);
}

/// The same range declared, but the pointer that of the whole arena.
PlaceRef range_of_whole(const EngineContext& context, const std::shared_ptr<Buffer>& memory, const Bucket& bucket) {
    if (!memory) return {};
    PlaceRef place = range(context, memory, bucket);
    place.first = -static_cast<std::ptrdiff_t>(place.offset);
    return place;
}

}  // namespace

std::vector<OwnedSlice> slices_of_arena(const ParameterStore& store, std::size_t bucket_bytes, int arena, int devices) {
    std::vector<OwnedSlice> slices;
    const auto in_arena = [arena](int a, int) { return a == arena; };
    for (const Bucket& bucket : make_buckets(store, bucket_bytes, in_arena))
        for (int d = 0; d < devices; ++d) {
            const Bucket part = slice_of(bucket, d, devices, store.parameters()[static_cast<std::size_t>(arena)]);
            slices.push_back({d, part.begin, part.end});
        }
    return slices;
}

PlaceRef fixed(const std::shared_ptr<Buffer>& memory, std::size_t offset, std::size_t bytes) {
    PlaceRef place;
    place.memory = memory;
    place.offset = offset;
    place.bytes = bytes;
    place.owner = memory->device();
    return place;
}

PlaceRef readable_on(Schedule& schedule, Stream& reader, const PlaceRef& place) {
    if (place.owner == reader.device() || peer_access(reader.device(), place.owner)) return place;
    const PlaceRef staged = fixed(Buffer::allocate(reader, place.bytes, "staging"), 0, place.bytes);
    PlaceRef source = place;
    source.first = 0;
    schedule.copy(reader, {source, staged, place.bytes});
    PlaceRef result = staged;
    result.first = place.first;
    return result;
}

TaskSpec flat_task(EngineContext& context, Stream& stream, int device, std::shared_ptr<const Operation> operation,
                   const std::vector<TensorMeta>& in_metas, std::vector<PlaceRef> in,
                   const std::vector<TensorMeta>& out_metas, std::vector<PlaceRef> out) {
    KernelRequest request;
    request.kind = context.devices.kind();
    request.deterministic = context.deterministic;
    request.in = in_metas;
    request.out = out_metas;
    TaskSpec task;
    task.kernel = KernelTable::of(request.kind).make(*operation, request);
    task.operation = std::move(operation);
    task.in = std::move(in);
    task.out = std::move(out);
    if (const std::size_t bytes = task.kernel->scratch_bytes())
        task.scratch = fixed(context.scratch(stream, bytes), 0, bytes);
    const ControlBlock& control = context.control[static_cast<std::size_t>(device)];
    task.step = control.step();
    task.agreed = control.agreed();
    task.failed = context.failed.get();
    task.replica = device;
    return task;
}

bool Reducer::by_slices() const {
    return context_.reduction == ReductionMode::slice_wise && update_.optimizer && context_.devices.size() > 1;
}

void Reducer::reduce(const Bucket& bucket, const std::vector<int>& ready) {
    if (by_slices())
        reduce_by_slices(bucket, ready);
    else
        reduce_on_root(bucket, ready);
}

void Reducer::sum(int device, const Bucket& part) {
    if (part.begin == part.end) return;
    Stream& stream = context_.communicate(device);
    const auto arena = static_cast<std::size_t>(part.arena);
    context_.store->need_gradients(device);
    const auto& target = context_.store->replicas()[static_cast<std::size_t>(device)].gradients[arena];
    std::vector<std::pair<int, int>> ranges;
    std::vector<PlaceRef> parts;
    for (const GradientNode& node : nodes_) {
        ranges.emplace_back(node.range.first, node.range.last);
        parts.push_back(readable_on(schedule_, stream, range(context_, node.arenas[arena], part)));
    }
    if (nodes_.size() == 1 && nodes_.front().arenas[arena] == target && !update_.accumulate)
        return;  // the sum is there
    const TensorMeta flat = TensorMeta::contiguous(dtype_of_bucket(context_, part), {part.end - part.begin});
    const std::vector<TensorMeta> flats(parts.size(), flat);
    schedule_.run(stream, flat_task(context_, stream, device,
                                    std::make_shared<const TreeSum>(std::move(ranges), update_.accumulate), flats,
                                    std::move(parts), {flat}, {range(context_, target, part)}));
}

void Reducer::update(int device, const Bucket& part) {
    if (part.begin == part.end) return;
    const auto arena = static_cast<std::size_t>(part.arena);
    const ArenaLayout& layout = context_.store->parameters()[arena];
    Replica& replica = context_.store->replicas()[static_cast<std::size_t>(device)];
    OptimizerState& state = update_.optimizer->state_on(context_.devices[device]);
    const TensorMeta whole = TensorMeta::contiguous(layout.dtype, {layout.elements});
    const TensorMeta table =
        TensorMeta::contiguous(DType::u8, {static_cast<std::int64_t>(state.segments[arena]->bytes())});
    Stream& stream = context_.communicate(device);
    schedule_.run(stream,
                  flat_task(context_, stream, device,
                            update_.optimizer->update(part.begin, part.end, part.first_segment, part.last_segment),
                            {whole, table},
                            {range_of_whole(context_, replica.gradients[arena], part),
                             fixed(state.segments[arena], 0, state.segments[arena]->bytes())},
                            {whole, whole},
                            {range_of_whole(context_, replica.parameters[arena], part),
                             range_of_whole(context_, state.momentum[arena], part)}));
}

void Reducer::broadcast(const Bucket& bucket, int updated) {
    const auto arena = static_cast<std::size_t>(bucket.arena);
    const std::vector<Replica>& replicas = context_.store->replicas();
    for (int d = 1; d < context_.devices.size(); ++d) {
        Stream& stream = context_.communicate(d);
        schedule_.wait(stream, updated);
        const PlaceRef from = range(context_, replicas[0].parameters[arena], bucket);
        schedule_.copy(stream, {from, range(context_, replicas[static_cast<std::size_t>(d)].parameters[arena], bucket),
                                from.bytes});
    }
}

void Reducer::reduce_on_root(const Bucket& bucket, const std::vector<int>& ready) {
    Stream& root = context_.communicate(0);
    for (const int event : ready) schedule_.wait(root, event);
    sum(0, bucket);
    if (!update_.optimizer) return;
    update(0, bucket);
    if (context_.devices.size() > 1) broadcast(bucket, schedule_.record(root));
}

void Reducer::update_from_root(const Bucket& bucket) {
    if (!by_slices()) {
        update(0, bucket);
        if (context_.devices.size() > 1) broadcast(bucket, schedule_.record(context_.communicate(0)));
        return;
    }
    const auto arena = static_cast<std::size_t>(bucket.arena);
    const ArenaLayout& layout = context_.store->parameters()[arena];
    const int gradients = schedule_.record(context_.communicate(0));
    std::vector<int> updated;
    for (int d = 0; d < context_.devices.size(); ++d) {
        Stream& stream = context_.communicate(d);
        const Bucket part = slice_of(bucket, d, context_.devices.size(), layout);
        if (d > 0) {
            schedule_.wait(stream, gradients);
            context_.store->need_gradients(d);
            const std::vector<Replica>& replicas = context_.store->replicas();
            const PlaceRef from = range(context_, replicas[0].gradients[arena], part);
            schedule_.copy(stream, {from, range(context_, replicas[static_cast<std::size_t>(d)].gradients[arena], part),
                                    from.bytes});
        }
        update(d, part);
        updated.push_back(schedule_.record(stream));
    }
    gather_slices(bucket, updated);
}

void Reducer::reduce_by_slices(const Bucket& bucket, const std::vector<int>& ready) {
    const ArenaLayout& layout = context_.store->parameters()[static_cast<std::size_t>(bucket.arena)];
    std::vector<int> updated;
    for (int d = 0; d < context_.devices.size(); ++d) {
        Stream& stream = context_.communicate(d);
        for (const int event : ready) schedule_.wait(stream, event);
        const Bucket part = slice_of(bucket, d, context_.devices.size(), layout);
        sum(d, part);
        update(d, part);
        updated.push_back(schedule_.record(stream));
    }
    gather_slices(bucket, updated);
}

void Reducer::gather_slices(const Bucket& bucket, const std::vector<int>& updated) {
    const int count = context_.devices.size();
    const auto arena = static_cast<std::size_t>(bucket.arena);
    const ArenaLayout& layout = context_.store->parameters()[arena];
    const std::vector<Replica>& replicas = context_.store->replicas();
    for (int d = 0; d < count; ++d)
        for (int other = 0; other < count; ++other) {
            if (other == d) continue;
            const Bucket part = slice_of(bucket, other, count, layout);
            Stream& stream = context_.communicate(d);
            schedule_.wait(stream, updated[static_cast<std::size_t>(other)]);
            const PlaceRef from = range(context_, replicas[static_cast<std::size_t>(other)].parameters[arena], part);
            schedule_.copy(
                stream,
                {from, range(context_, replicas[static_cast<std::size_t>(d)].parameters[arena], part), from.bytes});
        }
}

void Reducer::finish(const std::vector<Bucket>& buckets) {
    if (!update_.optimizer || !update_.optimizer->has_momentum()) return;
    const bool everywhere = context_.reduction == ReductionMode::slice_wise;
    for (int d = 0; d < (everywhere ? context_.devices.size() : 1); ++d) {
        OptimizerState& state = update_.optimizer->state_on(context_.devices[d]);
        for (std::size_t a = 0; a < state.segments.size(); ++a) {
            std::vector<int> segments;
            for (const Bucket& bucket : buckets)
                if (bucket.arena == static_cast<int>(a))
                    for (int i = bucket.first_segment; i < bucket.last_segment; ++i) segments.push_back(i);
            if (segments.empty()) continue;
            const TensorMeta table =
                TensorMeta::contiguous(DType::u8, {static_cast<std::int64_t>(state.segments[a]->bytes())});
            Stream& stream = context_.communicate(d);
            schedule_.run(
                stream, flat_task(context_, stream, d, std::make_shared<const MarkUpdated>(std::move(segments)), {}, {},
                                  {table}, {fixed(state.segments[a], 0, state.segments[a]->bytes())}));
        }
    }
}

}  // namespace lockstep
