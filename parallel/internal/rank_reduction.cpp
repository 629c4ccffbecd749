// Sums over the shards of several processes, bucket by bucket, on operations that every backend has: each rank is sent
// its part of a bucket by all others, adds the parts up along the tree, and everybody gathers the sums.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/parallel/communication_hook.h"
#include "lockstep/parallel/internal/exchange.h"
#include "lockstep/parallel/internal/reducer.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/tape.h"

namespace lockstep {

namespace {

DType dtype_in(const EngineContext& context, const Bucket& bucket) {
    return context.store->parameters()[static_cast<std::size_t>(bucket.arena)].dtype;
}

/// Where the parts of one bucket begin and end, and who sends what.
class RankExchange {
public:
    RankExchange(EngineContext& context, Schedule& schedule, const Bucket& bucket, bool behind_commits)
        : context_(context), schedule_(schedule), dtype_(dtype_in(context, bucket)), behind_commits_(behind_commits) {
        for (int r = 0; r < context.ranks(); ++r)
            parts_.push_back(static_cast<std::size_t>(ArenaCut::part(bucket, r, context.ranks()).elements()) *
                             size_of(dtype_));
    }

    /// Every rank in `senders` sends what lies at `own` (this rank's), of the length of the bucket; each gets its part
    /// of it from all of them. Returns where these lie, in the order of senders. `number`: which memory to use.
    std::vector<PlaceRef> send(int number, const std::vector<bool>& senders, const PlaceRef& own) {
        const bool sends = senders[static_cast<std::size_t>(context_.rank())];
        std::vector<std::size_t> sent(parts_.size(), 0), received(parts_.size(), 0);
        if (sends) sent = parts_;
        const auto& memory = context_.received(number);
        std::vector<PlaceRef> come;
        for (std::size_t r = 0; r < parts_.size(); ++r) {
            if (!senders[r]) continue;
            received[r] = own_bytes();
            come.push_back(fixed(memory, come.size() * own_bytes(), own_bytes()));
        }
        place_exchange(context_, schedule_,
                       {.name = "all_to_all",
                        .body =
                            [sent, received](Communicator& job, const Invocation& call) {
                                job.all_to_all(call.in[0], sent, call.out[0], received);
                            },
                        .in = {sends ? own : PlaceRef()},
                        .out = {fixed(memory, 0, come.size() * own_bytes())},
                        .behind_commits = behind_commits_});
        return come;
    }

    /// Adds up `places`, which are the sums over `ranges`, to this rank's part of `target`.
    void sum(std::vector<std::pair<int, int>> ranges, std::vector<PlaceRef> places, bool accumulate,
             const PlaceRef& target) {
        if (own_bytes() == 0) return;
        const std::vector<TensorMeta> metas(places.size(), flat());
        run(std::make_shared<const TreeSum>(std::move(ranges), accumulate, true), metas, std::move(places),
            part_of(target));
    }

    /// Divides this rank's part of `target` by the number of ranks.
    void average(const PlaceRef& target) {
        if (own_bytes() == 0 || context_.ranks() == 1) return;
        run(std::make_shared<const Affine>(1.0 / context_.ranks(), 0), {flat()}, {part_of(target)}, part_of(target));
    }

    /// Everybody gets the parts of all others.
    void gather(const PlaceRef& target) {
        place_exchange(
            context_, schedule_,
            {.name = "all_gather",
             .body = [parts = parts_](Communicator& job,
                                      const Invocation& call) { job.all_gather(call.in[0], call.out[0], parts); },
             .in = {part_of(target)},
             .out = {target},
             .behind_commits = behind_commits_});
    }

private:
    std::size_t own_bytes() const { return parts_[static_cast<std::size_t>(context_.rank())]; }
    TensorMeta flat() const {
        return TensorMeta::contiguous(dtype_, {static_cast<std::int64_t>(own_bytes() / size_of(dtype_))});
    }
    PlaceRef part_of(PlaceRef place) const {
        for (int r = 0; r < context_.rank(); ++r) place.offset += parts_[static_cast<std::size_t>(r)];
        place.bytes = own_bytes();
        return place;
    }
    void run(std::shared_ptr<const Operation> operation, const std::vector<TensorMeta>& metas,
             std::vector<PlaceRef> places, const PlaceRef& out) {
        Stream& stream = context_.exchange();
        schedule_.run(stream,
                      flat_task(context_, stream, 0, std::move(operation), metas, std::move(places), {flat()}, {out}));
    }

    EngineContext& context_;
    Schedule& schedule_;
    DType dtype_;
    bool behind_commits_;
    std::vector<std::size_t> parts_;  ///< bytes of each rank's part
};

/// What does not fit in a hook's result; empty where it does.
std::string misfit(const Tensor& sum, const Tensor& buffer) {
    if (!sum.defined()) return "it returned an undefined tensor; return the sum of the ranks' buffers";
    if (sum.device().is_host() && sum.dtype() == buffer.dtype() && sum.shape() == buffer.shape()) return {};
    return fmt::format("it returned a tensor of shape {} and {} on {}; the bucket has shape {} and {} on the host",
                       sum.shape().str(), name_of(sum.dtype()), sum.device().str(), buffer.shape().str(),
                       name_of(buffer.dtype()));
}

/// `data`: the numbers of the bucket, before and after.
void run_hook(const ReductionHook& hook, Communicator& job, void* data, const GradientBucket& bucket) {
    const Tensor& own = bucket.buffer();
    const auto& memory = own.impl()->storage->buffer;
    std::string wrong;
    try {
        const NoGrad no_tape;
        std::memcpy(memory->data(), data, memory->bytes());
        const Tensor sum = hook.sum(bucket);
        wrong = misfit(sum, own);
        if (wrong.empty() && sum.impl()->storage != own.impl()->storage) own.copy_(sum);
        std::memcpy(data, memory->data(), memory->bytes());
    } catch (const std::exception& error) {
        wrong = error.what();
    }
    if (wrong.empty()) return;
    hook.abort(fmt::format("rank {}: the communication hook failed: {}", job.rank(), wrong));
    job.give_up(fmt::format("communication hook of bucket {}", bucket.index()), memory->bytes(), wrong);
}

}  // namespace

std::vector<int> Reducer::sum_over_ranks(const Bucket& bucket, const PlaceRef& target, const std::vector<int>& ready) {
    Stream& stream = context_.exchange();
    for (const int event : ready) schedule_.wait(stream, event);
    if (context_.hook || context_.reduction == ReductionMode::fast) {
        sum_own(bucket, target);
        context_.hook ? call_hook(bucket, target) : all_reduce(bucket, target);
        return {schedule_.record(stream)};
    }
    RankExchange exchange(context_, schedule_, bucket, behind_commits());

    // A rank sends one sum for each of its nodes of the tree: one, unless its run of shards is unaligned.
    std::vector<std::vector<ShardRange>> nodes;
    std::size_t most = 0;
    for (int r = 0; r < context_.ranks(); ++r) {
        nodes.push_back(tree_nodes(context_.held_by(r, context_.shards), sums_->present()));
        most = std::max(most, nodes.back().size());
    }
    std::vector<std::pair<ShardRange, PlaceRef>> sums;
    for (std::size_t number = 0; number < most; ++number) {
        std::vector<bool> senders;
        for (const auto& of_rank : nodes) senders.push_back(number < of_rank.size());
        PlaceRef own;
        if (senders[static_cast<std::size_t>(context_.rank())])
            own = sums_->place(sums_->device_nodes()[number], bucket, turn_, bucket.begin, bucket.end);
        auto come = exchange.send(static_cast<int>(number), senders, own);
        std::size_t next = 0;
        for (const auto& of_rank : nodes)
            if (number < of_rank.size()) sums.emplace_back(of_rank[number], come[next++]);
    }
    std::sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.first.first < b.first.first; });
    std::vector<std::pair<int, int>> shards;
    std::vector<PlaceRef> places;
    for (const auto& [range, place] : sums) {
        shards.emplace_back(range.first, range.last);
        places.push_back(place);
    }
    exchange.sum(std::move(shards), std::move(places), update_.adds, target);

    if (update_.sync == GradientSync::all) {
        const std::vector<bool> everybody(nodes.size(), true);
        std::vector<std::pair<int, int>> ranks;
        for (int r = 0; r < context_.ranks(); ++r) ranks.emplace_back(r, r + 1);
        exchange.sum(std::move(ranks), exchange.send(static_cast<int>(most), everybody, gradients_of(context_, bucket)),
                     true, target);
    }
    if (!update_.optimizer) exchange.average(target);
    exchange.gather(target);
    return {schedule_.record(stream)};
}

void Reducer::sum_own(const Bucket& bucket, const PlaceRef& target) {
    Stream& stream = context_.exchange();
    std::vector<std::pair<int, int>> parts;
    std::vector<PlaceRef> places;
    const auto take = [&](const PlaceRef& place) {
        parts.emplace_back(parts.size(), parts.size() + 1);
        places.push_back(place);
    };
    for (const DeviceNode& node : sums_->device_nodes())
        take(sums_->place(node, bucket, turn_, bucket.begin, bucket.end));
    if (update_.sync == GradientSync::all) take(gradients_of(context_, bucket));
    const TensorMeta meta = TensorMeta::contiguous(dtype_in(context_, bucket), {bucket.elements()});
    if (places.empty())  // no rows: it takes part all the same
        schedule_.run(stream,
                      flat_task(context_, stream, 0, std::make_shared<const Fill>(0), {}, {}, {meta}, {target}));
    else if (places.size() > 1 || places.front().memory != target.memory)
        schedule_.run(stream, flat_task(context_, stream, 0, std::make_shared<const TreeSum>(std::move(parts), false),
                                        std::vector<TensorMeta>(places.size(), meta), places, {meta}, {target}));
}

void Reducer::all_reduce(const Bucket& bucket, const PlaceRef& target) {
    const ReduceOp op = update_.optimizer ? ReduceOp::sum : ReduceOp::mean;
    place_exchange(
        context_, schedule_,
        {.name = "all_reduce",
         .body = [count = static_cast<std::size_t>(bucket.elements()), dtype = dtype_in(context_, bucket), op](
                     Communicator& job, const Invocation& call) { job.all_reduce(call.out[0], count, dtype, op); },
         .in = {target},
         .out = {target},
         .behind_commits = behind_commits()});
}

void Reducer::call_hook(const Bucket& bucket, const PlaceRef& target) {
    const DType dtype = dtype_in(context_, bucket);
    const auto& segments = context_.store->parameters()[static_cast<std::size_t>(bucket.arena)].segments;
    std::vector<GradientBucket::Part> parts;
    for (int i = bucket.first_segment; i < bucket.last_segment; ++i) {
        const ArenaSegment& segment = segments[static_cast<std::size_t>(i)];
        const std::int64_t begin = std::max(segment.begin, bucket.begin), end = std::min(segment.end, bucket.end);
        const bool whole = begin == segment.begin && end == segment.end;
        parts.push_back({segment.name, whole, whole ? segment.shape : Shape{end - begin}, begin - bucket.begin,
                         end - bucket.begin});
    }
    place_exchange(context_, schedule_,
                   {.name = "communication_hook",
                    .body =
                        [hook = context_.hook, number = number_, last = last_, shape = Shape{bucket.elements()}, dtype,
                         parts = std::move(parts)](Communicator& job, const Invocation& call) {
                            run_hook(*hook, job, call.out[0], {number, last, Tensor::empty(shape, dtype), parts});
                        },
                    .in = {target},
                    .out = {target},
                    .behind_commits = behind_commits()});
    if (update_.optimizer || context_.ranks() == 1) return;
    const TensorMeta meta = TensorMeta::contiguous(dtype, {bucket.elements()});
    schedule_.run(context_.exchange(),
                  flat_task(context_, context_.exchange(), 0, std::make_shared<const Affine>(1.0 / context_.ranks(), 0),
                            {meta}, {target}, {meta}, {target}));
}

}  // namespace lockstep
