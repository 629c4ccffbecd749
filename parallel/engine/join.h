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

/// One scope of join. Everything is collective: at every forward the ranks tell each other whether they have a batch,
/// on a communicator of its own, so that nothing waits for steps under way. A rank that never had a batch is lent one
/// when it is needed.
class Join {
public:
    Join(EngineParts& parts, const JoinOptions& options)
        : parts_(parts), options_(options), job_(parts.ranks.job()->duplicate("join")) {}

    /// What a rank without batches repeats along with the others: its own last forward and backward.
    struct Shadow {
        std::shared_ptr<const BatchProgram> batch;
        std::vector<BatchInput> inputs;
        ScheduledProgram* program = nullptr;      ///< of that batch; null where this rank made no such forward
        std::shared_ptr<Instance> instance = {};  ///< keeps the program
    };

    /// Call before a forward that will have a backward, of full shards of `chunk` rows. Returns the factor of its
    /// gradients. Throws StepError where the scope ends with the first rank that has no batch left, and InvalidArgument
    /// where a rank must be lent these inputs and the caller has cut them already.
    double enter(GradientSync sync, const std::vector<BatchInput>& inputs, std::int64_t chunk);
    /// Remembers that forward for later shadows.
    void keep(Shadow shadow, GradientSync sync) { shadows_[sync] = std::move(shadow); }
    /// This rank has no batch left: `shadow_one(syncs, lent)` for every forward of the others, until there is none.
    /// `lent`: the inputs of a lent batch, where this rank has nothing to repeat; else empty.
    void leave(const std::function<void(bool syncs, const std::vector<Tensor>& lent)>& shadow_one);
    /// The last forward with that `sync`, or another one where there was none.
    const Shadow& shadow(GradientSync sync);
    /// An optimizer has updated: the last ranks hand on its state, too.
    void note(const Optimizer& optimizer) { updated_by_.insert(optimizer.id()); }
    /// Everybody takes parameters, buffers and the state of optimizers from the rank that left last.
    void hand_on();

private:
    static constexpr unsigned present = 1, syncing = 2, lacking = 4;  // what a rank is: a sum of these
    struct Round {
        int present = 0, syncing = 0, lacking = 0;
        RankIndex lender;  ///< the first that is present
    };
    Round meet(unsigned flags);
    void require_going_on(const Round& round) const;
    /// The lender's batch on all ranks (`packed` is called on the lender); empty where no rank needs one.
    std::string lend(const Round& round, const std::function<std::string()>& packed);

    EngineParts& parts_;
    JoinOptions options_;
    std::unique_ptr<Communicator> job_;
    std::map<GradientSync, Shadow> shadows_;
    std::int64_t forwards_ = 0;
    std::set<std::uint64_t> updated_by_;
};

}  // namespace lockstep
