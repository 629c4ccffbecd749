#include "lockstep/parallel/reduce/reducer.h"

#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/ops/internal/update_operations.h"
#include "lockstep/parallel/reduce/exchange.h"
#include "lockstep/parallel/reduce/placed_update.h"

namespace lockstep {

namespace {

const ArenaLayout& layout_of(const EngineContext& context, const Bucket& bucket) {
    return context.store->parameters()[static_cast<std::size_t>(bucket.arena)];
}

/// Elements of `part`, from element `first` of `memory` on.
PlaceRef elements_at(const EngineContext& context, const std::shared_ptr<Buffer>& memory, const Bucket& part,
                     std::int64_t first) {
    const std::size_t size = size_of(layout_of(context, part).dtype);
    return fixed(memory, static_cast<std::size_t>(first) * size, static_cast<std::size_t>(part.elements()) * size);
}

/// The range of `part` in one of the arenas of replica `device`.
PlaceRef range(const EngineContext& context, int device, std::vector<std::shared_ptr<Buffer>> Replica::*arenas,
               const Bucket& part) {
    const Replica& replica = context.store->replicas()[static_cast<std::size_t>(device)];
    return elements_at(context, (replica.*arenas)[static_cast<std::size_t>(part.arena)], part, part.begin);
}

TensorMeta flat(const EngineContext& context, const Bucket& part) {
    return TensorMeta::contiguous(layout_of(context, part).dtype, {part.elements()});
}

}  // namespace

PlaceRef gradients_of(const EngineContext& context, const Bucket& part) {
    return range(context, 0, &Replica::gradients, part);
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
    request.device = stream.device();
    request.deterministic = context.deterministic;
    request.in = in_metas;
    request.out = out_metas;
    TaskSpec task;
    task.kernel = KernelTable::of(request.device.kind()).make(*operation, request);
    task.operation = std::move(operation);
    task.in = std::move(in);
    task.out = std::move(out);
    if (const std::size_t bytes = task.kernel->scratch_bytes())
        task.scratch = fixed(context.scratch(stream, bytes), 0, bytes);
    const ControlBlock& control = context.control[static_cast<std::size_t>(device)];
    task.step = control.step();
    task.agreed = control.agreed();
    task.health = context.health.get();
    task.replica = device;
    return task;
}

bool Reducer::by_slices() const { return update_.optimizer && context_.cut->updating() > 1; }

Stream& Reducer::communicate(int device) {
    communicating_.insert(device);
    return context_.communicate(device);
}

Stream& Reducer::summing(int device) {
    const bool updates_at_once = update_.updates_each_bucket() && !update_.adds && !sums_->uses_slots();
    return updates_at_once ? context_.commit(device) : communicate(device);
}

void Reducer::wait_for_slots(Stream& lane) {
    for (const int event : read_[static_cast<std::size_t>(turn_)]) schedule_.wait(lane, event);
}

PlaceRef Reducer::read_from_peer(Stream& reader, int index, const PlaceRef& place) {
    if (place.owner == reader.device() || peer_access(reader.device(), place.owner)) return place;
    auto& staging = staging_[{&reader, index}];  // in order on one stream: every bucket uses the same memory
    if (!staging) staging = Buffer::allocate(reader, context_.cut->largest(), "staging");
    const PlaceRef staged = fixed(staging, 0, place.bytes);
    schedule_.copy(reader, {place, staged, place.bytes});
    return staged;
}

std::vector<int> Reducer::combine(const Bucket& bucket, std::vector<int> ready) {
    const std::vector<int> lanes = ready;
    for (int d = by_slices() || over_ranks() ? 0 : 1; d < context_.devices.size(); ++d) {
        bool combines = false;
        for (const DeviceNode& node : sums_->device_nodes()) {
            if (node.device != d || node.last - node.first < 2) continue;
            Stream& stream = communicate(d);
            if (!combines)
                for (const int event : lanes) schedule_.wait(stream, event);
            combines = true;
            std::vector<std::pair<int, int>> shards;
            std::vector<PlaceRef> parts;
            for (std::size_t i = node.first; i < node.last; ++i) {
                shards.push_back(PartialSums::shards_of(sums_->nodes()[i]));
                parts.push_back(sums_->place(sums_->nodes()[i], bucket, turn_, bucket.begin, bucket.end));
            }
            const TensorMeta meta = flat(context_, bucket);
            const std::vector<TensorMeta> metas(parts.size(), meta);
            const PlaceRef target = parts.front();
            schedule_.run(stream, flat_task(context_, stream, d, make_operation(TreeSum{std::move(shards), false}),
                                            metas, std::move(parts), {meta}, {target}));
        }
        if (combines) ready.push_back(schedule_.record(communicate(d)));
    }
    return ready;
}

std::vector<int> Reducer::sum(int device, const Bucket& bucket, const Bucket& part, const std::vector<int>& ready) {
    if (part.elements() == 0) return ready;
    PlaceRef target = range(context_, device, &Replica::gradients, part);
    if (update_.accumulate)
        target = elements_at(context_, context_.sums_to_add()[static_cast<std::size_t>(part.arena)], part, part.begin);
    if (over_ranks()) return sum_over_ranks(bucket, target, ready);
    std::vector<std::pair<int, int>> shards;
    std::vector<PlaceRef> places;
    for (const DeviceNode& node : sums_->device_nodes()) {
        if (node.device == 0 && !by_slices()) {  // not combined: all are added here at once
            for (std::size_t i = node.first; i < node.last; ++i) {
                shards.push_back(PartialSums::shards_of(sums_->nodes()[i]));
                places.push_back(sums_->place(sums_->nodes()[i], bucket, turn_, part.begin, part.end));
            }
        } else {
            shards.push_back(sums_->shards_of(node));
            places.push_back(sums_->place(node, bucket, turn_, part.begin, part.end));
        }
    }
    if (context_.job)  // a part of the tree: parts are added up in their order
        for (std::size_t i = 0; i < shards.size(); ++i) shards[i] = {static_cast<int>(i), static_cast<int>(i) + 1};
    if (places.size() == 1 && places.front().memory == target.memory) return ready;  // the sum is there
    Stream& stream = summing(device);
    for (const int event : ready) schedule_.wait(stream, event);
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = read_from_peer(stream, static_cast<int>(i), places[i]);
    const TensorMeta meta = flat(context_, part);
    const std::vector<TensorMeta> metas(places.size(), meta);
    schedule_.run(stream,
                  flat_task(context_, stream, device, make_operation(TreeSum{std::move(shards), update_.adds, true}),
                            metas, std::move(places), {meta}, {target}));
    return {schedule_.record(stream)};
}

void Reducer::update(int device, const Bucket& part) {
    if (part.elements() == 0) return;
    const auto arena = static_cast<std::size_t>(part.arena);
    const OptimizerState& state = context_.state(*update_.optimizer, device);
    UpdateMemory memory{range(context_, device, &Replica::gradients, part),
                        range(context_, device, &Replica::parameters, part),
                        fixed(state.rows[arena], 0, state.rows[arena]->bytes()),
                        {}};
    const std::int64_t place = context_.cut->place_of_state(part, device);
    for (const auto& [name, elements] : state.elements)
        memory.states.emplace(name, elements_at(context_, elements[arena], part, place));
    place_update(context_, schedule_, device, *update_.optimizer, part, memory);
}

void Reducer::broadcast(const Bucket& bucket) {
    if (context_.devices.size() == 1) return;
    const int updated = schedule_.record(context_.commit(0));
    for (int d = 1; d < context_.devices.size(); ++d) {
        Stream& stream = context_.commit(d);
        schedule_.wait(stream, updated);
        const PlaceRef from = range(context_, 0, &Replica::parameters, bucket);
        schedule_.copy(stream, {from, range(context_, d, &Replica::parameters, bucket), from.bytes});
    }
}

void Reducer::accumulate(const Bucket& bucket) {
    Stream& stream = context_.commit(0);
    const PlaceRef sum =
        elements_at(context_, context_.sums_to_add()[static_cast<std::size_t>(bucket.arena)], bucket, bucket.begin);
    const PlaceRef gradients = range(context_, 0, &Replica::gradients, bucket);
    if (over_ranks() && update_.sync == GradientSync::all) {  // the sum has what lay there in it
        const TensorMeta bytes = TensorMeta::contiguous(DType::u8, {static_cast<std::int64_t>(sum.bytes)});
        schedule_.run(stream,
                      flat_task(context_, stream, 0, make_operation(TakeOver{}), {bytes}, {sum}, {bytes}, {gradients}));
        return;
    }
    const TensorMeta meta = flat(context_, bucket);
    schedule_.run(
        stream, flat_task(context_, stream, 0,
                          make_operation(TreeSum{std::vector<std::pair<int, int>>{{0, context_.shards}}, true}), {meta},
                          {sum}, {meta}, {gradients}));
}

void Reducer::reduce(const Bucket& bucket, const std::vector<int>& ready, bool last) {
    last_ = last;
    const std::vector<int> combined = combine(bucket, ready);
    std::vector<int> read;
    const auto brought = [&](int device, const Bucket& part) {
        context_.store->need_gradients(device);
        const std::vector<int> summed = sum(device, bucket, part, combined);
        read.insert(read.end(), summed.begin(), summed.end());
        for (const int event : update_.update ? summed : std::vector<int>())
            schedule_.wait(context_.commit(device), event);
        if (over_ranks() && update_.update) place_exchange_check(context_, schedule_, behind_commits());
    };
    if (by_slices()) {
        std::vector<int> updated;
        for (int d = 0; d < context_.devices.size(); ++d) {
            const Bucket part = context_.cut->slice(bucket, d);
            brought(d, part);
            if (!update_.updates_each_bucket()) continue;
            update(d, part);
            updated.push_back(schedule_.record(context_.commit(d)));
        }
        if (update_.updates_each_bucket()) gather_slices(bucket, updated);
    } else {
        brought(0, bucket);
        if (update_.accumulate) accumulate(bucket);
        if (update_.updates_each_bucket()) update_bucket(bucket);
    }
    if (sums_->uses_slots()) read_[static_cast<std::size_t>(turn_)] = std::move(read);
    turn_ = (turn_ + 1) % PartialSums::turns;
    ++number_;
}

void Reducer::update_from_root(const Bucket& bucket) {
    if (!by_slices()) {
        update(0, bucket);
        broadcast(bucket);
        return;
    }
    const int gradients = schedule_.record(context_.commit(0));
    std::vector<int> updated;
    for (int d = 0; d < context_.devices.size(); ++d) {
        Stream& stream = context_.commit(d);
        const Bucket part = context_.cut->slice(bucket, d);
        if (d > 0) {
            schedule_.wait(stream, gradients);
            context_.store->need_gradients(d);
            const PlaceRef from = range(context_, 0, &Replica::gradients, part);
            schedule_.copy(stream, {from, range(context_, d, &Replica::gradients, part), from.bytes});
        }
        update(d, part);
        updated.push_back(schedule_.record(stream));
    }
    gather_slices(bucket, updated);
}

void Reducer::update_bucket(const Bucket& bucket) {
    if (!by_slices()) {
        update(0, bucket);
        broadcast(bucket);
        return;
    }
    std::vector<int> updated;
    for (int d = 0; d < context_.devices.size(); ++d) {
        update(d, context_.cut->slice(bucket, d));
        updated.push_back(schedule_.record(context_.commit(d)));
    }
    gather_slices(bucket, updated);
}

void Reducer::pass_gate(const std::vector<Bucket>& buckets) {
    std::vector<std::vector<Bucket>> parts(static_cast<std::size_t>(context_.cut->updating()));
    for (const Bucket& bucket : buckets)
        for (std::size_t d = 0; d < parts.size(); ++d) {
            const Bucket part = by_slices() ? context_.cut->slice(bucket, static_cast<int>(d)) : bucket;
            if (part.elements() > 0) parts[d].push_back(part);
        }
    GatePlacer(context_, schedule_, *update_.optimizer, std::move(parts)).place(update_.gate);
    for (const Bucket& bucket : buckets) update_bucket(bucket);
}

void Reducer::gather_slices(const Bucket& bucket, const std::vector<int>& updated) {
    for (int d = 0; d < context_.devices.size(); ++d)
        for (int other = 0; other < context_.devices.size(); ++other) {
            if (other == d) continue;
            const Bucket part = context_.cut->slice(bucket, other);
            Stream& stream = context_.commit(d);
            schedule_.wait(stream, updated[static_cast<std::size_t>(other)]);
            const PlaceRef from = range(context_, other, &Replica::parameters, part);
            schedule_.copy(stream, {from, range(context_, d, &Replica::parameters, part), from.bytes});
        }
}

void Reducer::finish(const std::vector<Bucket>& buckets) {
    if (!update_.optimizer || !update_.update) return;
    if (!gate_is_empty()) pass_gate(buckets);
    if (!update_.optimizer->counts_updates()) return;
    for (int d = 0; d < (by_slices() ? context_.devices.size() : 1); ++d) {
        OptimizerState& state = context_.state(*update_.optimizer, d);
        for (std::size_t a = 0; a < state.rows.size(); ++a) {
            std::set<int> updated;  // a parameter may lie in several buckets
            for (const Bucket& bucket : buckets)
                if (bucket.arena == static_cast<int>(a))
                    for (int i = bucket.first_segment; i < bucket.last_segment; ++i) updated.insert(i);
            if (updated.empty()) continue;
            const TensorMeta rows =
                TensorMeta::contiguous(DType::u8, {static_cast<std::int64_t>(state.rows[a]->bytes())});
            Stream& stream = context_.commit(d);
            schedule_.run(stream,
                          flat_task(context_, stream, d,
                                    make_operation(CountUpdates{update_.optimizer->row_bytes(),
                                                                std::vector<int>(updated.begin(), updated.end())}),
                                    {}, {}, {rows}, {fixed(state.rows[a], 0, state.rows[a]->bytes())}));
        }
    }
}

}  // namespace lockstep
