// Uneven inputs: ranks that have no batch left shadow the others' collectives until all have none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/join_options.h"
#include "lockstep/parallel/data/sharded_tensor.h"
#include "lockstep/parallel/engine/engine_parts.h"
#include "lockstep/parallel/schedule/scheduled_program.h"

namespace lockstep {

/// One scope of join. Everything is collective: at every forward the ranks exchange whether they have a batch, on a
/// separate communicator, so that this does not wait for steps in flight. A rank that never had a batch borrows one if
/// necessary.
class Join {
public:
    Join(EngineParts& parts, const JoinOptions& options)
        : parts_(parts), options_(options), job_(parts.ranks.job()->duplicate("join")) {}

    /// The last forward and backward of a rank without batches, which it repeats with the others.
    struct Shadow {
        std::shared_ptr<const BatchProgram> batch;
        std::vector<BatchInput> inputs;
        ScheduledProgram* program = nullptr;      ///< program of that batch; null if this rank made no such forward
        std::shared_ptr<Instance> instance = {};  ///< owns the program
    };

    /// Must be called before a forward that will have a backward, of full shards of `chunk` rows. Returns the factor of
    /// its gradients. Throws StepError if the scope ends with the first rank that has no batch left, and
    /// InvalidArgument if a rank must borrow these inputs and the caller has cut them already.
    double enter(GradientSync sync, const std::vector<BatchInput>& inputs, std::int64_t chunk);
    /// Stores that forward for later shadows.
    void keep(Shadow shadow, GradientSync sync) { shadows_[sync] = std::move(shadow); }
    /// This rank has no batch left: calls `shadow_one(syncs, lent)` for every forward of the others. `lent`: the inputs
    /// of a borrowed batch if this rank has no forward to repeat; otherwise empty.
    void leave(const std::function<void(bool syncs, const std::vector<Tensor>& lent)>& shadow_one);
    /// The last forward with that `sync`, or any other if none has it.
    const Shadow& shadow(GradientSync sync);
    /// Records that an optimizer has updated, so that its state is also broadcast by the last ranks.
    void note(const Optimizer& optimizer) { updated_by_.insert(optimizer.id()); }
    /// Broadcasts parameters, buffers and the state of optimizers from the rank that left last.
    void hand_on();

private:
    static constexpr unsigned present = 1, syncing = 2, lacking = 4;  // flags of a rank, combined by addition
    struct Round {
        int present = 0, syncing = 0, lacking = 0;
        RankIndex lender;  ///< the first rank that has a batch
    };
    Round meet(unsigned flags);
    void require_going_on(const Round& round) const;
    /// Broadcasts the lender's batch (`packed` is called on the lender); empty if no rank needs one.
    std::string lend(const Round& round, const std::function<std::string()>& packed);

    EngineParts& parts_;
    JoinOptions options_;
    std::unique_ptr<Communicator> job_;
    std::map<GradientSync, Shadow> shadows_;
    std::int64_t forwards_ = 0;
    std::set<std::uint64_t> updated_by_;
};

}  // namespace lockstep
