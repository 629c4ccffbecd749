// The reduction engine: brings gradients together along the tree, updates, and spreads the weights, bucket by bucket,
// while backward goes on.
#pragma once

#include <vector>

#include "lockstep/ops/optimizer.h"
#include "lockstep/parallel/internal/engine_context.h"
#include "lockstep/parallel/internal/gradient_nodes.h"
#include "lockstep/parallel/internal/schedule.h"

namespace lockstep {

/// A contiguous range of delivered parameters of one arena that is reduced (and updated) together.
struct Bucket {
    int arena = 0;
    std::int64_t begin = 0, end = 0;  ///< elements of the arena
    int first_segment = 0, last_segment = 0;
    /// The fixed bucket of the arena that this is (a part of): who owns which slice depends on it alone.
    std::int64_t whole_begin = 0, whole_end = 0;
};

/// What happens to gradients once they are summed.
struct UpdatePlan {
    Optimizer* optimizer = nullptr;  ///< null: the sum stays in the gradient arena of device 0
    bool accumulate = false;         ///< it is added to what lies there
};

/// Elements [begin, end) of an arena that one device sums, updates and keeps the momentum of.
struct OwnedSlice {
    int device = 0;
    std::int64_t begin = 0, end = 0;
};
/// Who owns what of an arena when `devices` devices reduce slice-wise.
std::vector<OwnedSlice> slices_of_arena(const ParameterStore& store, std::size_t bucket_bytes, int arena, int devices);

/// Appends the commands for one bucket. Lanes have recorded `ready` events (one a lane that has shards) once their
/// gradients of the bucket are complete and its parameters are no longer read.
class Reducer {
public:
    Reducer(EngineContext& context, const std::vector<GradientNode>& nodes, UpdatePlan update, Schedule& schedule)
        : context_(context), nodes_(nodes), update_(update), schedule_(schedule) {}

    void reduce(const Bucket& bucket, const std::vector<int>& ready);
    /// Update and broadcast alone, for gradients that lie in the arena of device 0 (PyTorch's longer form).
    void update_from_root(const Bucket& bucket);
    bool by_slices() const;
    /// After the last bucket: notes on every device which segments have been updated.
    void finish(const std::vector<Bucket>& buckets);

private:
    void reduce_on_root(const Bucket& bucket, const std::vector<int>& ready);
    void reduce_by_slices(const Bucket& bucket, const std::vector<int>& ready);
    void sum(int device, const Bucket& part);
    void update(int device, const Bucket& part);
    void broadcast(const Bucket& bucket, int updated);
    void gather_slices(const Bucket& bucket, const std::vector<int>& updated);

    EngineContext& context_;
    const std::vector<GradientNode>& nodes_;
    UpdatePlan update_;
    Schedule& schedule_;
};

/// A task of an operation on memory given as flat ranges, for `stream`, whose scratch memory it uses.
TaskSpec flat_task(EngineContext& context, Stream& stream, int device, std::shared_ptr<const Operation> operation,
                   const std::vector<TensorMeta>& in_metas, std::vector<PlaceRef> in,
                   const std::vector<TensorMeta>& out_metas, std::vector<PlaceRef> out);
/// Fixed memory: `bytes` from `offset` on.
PlaceRef fixed(const std::shared_ptr<Buffer>& memory, std::size_t offset, std::size_t bytes);
/// `place` if a kernel on `reader` may read it, else a staging copy of it on the reader's device, enqueued here.
PlaceRef readable_on(Schedule& schedule, Stream& reader, const PlaceRef& place);

}  // namespace lockstep
