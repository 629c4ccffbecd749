// The reduction engine: brings gradients together along the tree, updates, and spreads the weights, bucket by bucket,
// while backward goes on.
#pragma once

#include <array>
#include <map>
#include <set>
#include <vector>

#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/reduce/gradient_gate.h"
#include "lockstep/parallel/reduce/partial_sums.h"
#include "lockstep/parallel/schedule/engine_context.h"
#include "lockstep/parallel/schedule/schedule.h"

namespace lockstep {

/// What several processes bring together in a backward of its own (PyTorch's longer form), as a mean over them.
enum class GradientSync : std::uint8_t {
    new_ones,  ///< the gradients of this backward
    all,       ///< and what lies in the arena already, which backwards without it have left there
    none       ///< nothing: they are added up in every process by itself
};

/// What happens to gradients once they are summed.
struct UpdatePlan {
    Optimizer* optimizer = nullptr;  ///< null: the sum stays in the gradient arena of device 0
    bool accumulate = false;         ///< it is added to what lies there
    bool adds = false;   ///< micro-steps: added to the sums of earlier ones, in the gradient arenas of all who sum
    bool update = true;  ///< false: a later micro-step updates
    GradientSync sync = GradientSync::new_ones;
    GateRules gate = {};  ///< what comes before the first update

    /// A bucket is updated as soon as it is summed.
    bool updates_each_bucket() const { return optimizer && update && gate.empty(); }
};

/// Appends the commands for one bucket after the other. Whatever outlives the step goes to streams that commit.
class Reducer {
public:
    /// `sums`: null where only `update_from_root` is wanted.
    Reducer(EngineContext& context, const PartialSums* sums, UpdatePlan update, Schedule& schedule)
        : context_(context), sums_(sums), update_(update), schedule_(schedule) {}

    /// The turn of the coming bucket in slots.
    int turn() const { return turn_; }
    /// Makes a lane's stream wait until the slots of this turn have been read.
    void wait_for_slots(Stream& lane);
    /// `ready`: events (one a lane that has shards) behind which the gradients of the bucket are complete, and in slots
    /// where they belong there, and its parameters are no longer read. `last`: no other follows.
    void reduce(const Bucket& bucket, const std::vector<int>& ready, bool last);
    /// Update and broadcast alone, for gradients that lie in the arena of device 0 (PyTorch's longer form).
    void update_from_root(const Bucket& bucket);
    /// After the last bucket: passes the gate and updates, where that was waited for; counts the updates of every
    /// parameter.
    void finish(const std::vector<Bucket>& buckets);
    /// Devices whose communication streams have been used.
    const std::set<int>& communicating() const { return communicating_; }

private:
    bool by_slices() const;
    bool gate_is_empty() const { return update_.gate.empty(); }
    /// Parts of the step may have been committed when the bucket is summed: earlier ones update, or a forward has.
    bool behind_commits() const { return !update_.optimizer || (number_ > 0 && gate_is_empty()); }
    bool over_ranks() const { return context_.job && update_.sync != GradientSync::none; }
    /// Adds up lanes' sums on devices that have several, before others read them. Events to wait for: `ready` and more.
    std::vector<int> combine(const Bucket& bucket, std::vector<int> ready);
    /// Brings the sum of `part` to `device`; returns the events behind which it is there.
    std::vector<int> sum(int device, const Bucket& bucket, const Bucket& part, const std::vector<int>& ready);
    /// The same over processes (rank_reduction.cpp): each sums its part of the bucket, and gets those of the others.
    /// The sum comes to `target`, all of it.
    std::vector<int> sum_over_ranks(const Bucket& bucket, const PlaceRef& target, const std::vector<int>& ready);
    /// This rank's own sum, all of it, to `target`.
    void sum_own(const Bucket& bucket, const PlaceRef& target);
    /// Makes it the sum of all ranks by the backend's own operation, in its order, or by a hook.
    void all_reduce(const Bucket& bucket, const PlaceRef& target);
    void call_hook(const Bucket& bucket, const PlaceRef& target);
    /// Adds the sum to what lies in device 0's gradient arena, when the step is good.
    void accumulate(const Bucket& bucket);
    void pass_gate(const std::vector<Bucket>& buckets);
    /// Updates a bucket wherever its sums lie, and spreads the weights.
    void update_bucket(const Bucket& bucket);
    void update(int device, const Bucket& part);
    void broadcast(const Bucket& bucket);
    void gather_slices(const Bucket& bucket, const std::vector<int>& updated);
    PlaceRef read_from_peer(Stream& reader, int index, const PlaceRef& place);
    Stream& communicate(int device);
    /// Where `device` sums. Lanes that use slots wait for sums, which must not be held back then; else the stream that
    /// updates does, while the sum is in its cache.
    Stream& summing(int device);

    EngineContext& context_;
    const PartialSums* sums_;
    UpdatePlan update_;
    Schedule& schedule_;
    int turn_ = 0;
    int number_ = 0;                                         ///< of the bucket, in the order of the turns
    bool last_ = false;                                      ///< it is the last one
    std::array<std::vector<int>, PartialSums::turns> read_;  ///< events behind which slots have been read
    std::set<int> communicating_;
    std::map<std::pair<Stream*, int>, std::shared_ptr<Buffer>> staging_;
};

/// Elements of `part` in the gradient arena of device 0.
PlaceRef gradients_of(const EngineContext& context, const Bucket& part);
/// A task of an operation on memory given as flat ranges, for `stream`, whose scratch memory it uses.
TaskSpec flat_task(EngineContext& context, Stream& stream, int device, std::shared_ptr<const Operation> operation,
                   const std::vector<TensorMeta>& in_metas, std::vector<PlaceRef> in,
                   const std::vector<TensorMeta>& out_metas, std::vector<PlaceRef> out);
/// `place` if a kernel on `reader` may read it, else a staging copy of it on the reader's device, enqueued here.
PlaceRef readable_on(Schedule& schedule, Stream& reader, const PlaceRef& place);

}  // namespace lockstep
