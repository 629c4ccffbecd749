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

/// One scope of join. Everything is collective; forwards of all ranks meet here one by one, on a communicator of its
/// own, so that steps under way need not be waited for. A rank that had no batch at all is lent one when it is needed.
class Join {
public:
    Join(EngineParts& parts, const JoinOptions& options)
        : parts_(parts), options_(options), job_(parts.ranks.job()->duplicate("join")) {}

    /// What a rank without batches does with the others' forward and backward: the same as in its own last ones.
    struct Shadow {
        std::shared_ptr<const BatchProgram> batch;
        std::vector<BatchInput> inputs;
        ScheduledProgram* program = nullptr;      ///< of that batch; null where this rank made no such forward
        std::shared_ptr<Instance> instance = {};  ///< keeps the program
    };

    /// A forward that will have a backward, of full shards of `chunk` rows. Returns by what its gradients are
    /// multiplied. Throws StepError where the scope ends with the first rank that has no batch left, and
    /// InvalidArgument where a rank must be lent these inputs and they were cut before.
    double enter(GradientSync sync, const std::vector<BatchInput>& inputs, std::int64_t chunk);
    /// What that forward was.
    void keep(Shadow shadow, GradientSync sync) { shadows_[sync] = std::move(shadow); }
    /// This rank has no batch left: `shadow_one(syncs, lent)` for every forward of the others, until there is none.
    /// `lent`: what to make a shadow of, where there is none; else empty.
    void leave(const std::function<void(bool syncs, const std::vector<Tensor>& lent)>& shadow_one);
    /// Of the last such forward, or of another one where there was none.
    const Shadow& shadow(GradientSync sync);
    /// An optimizer has updated: its state is a part of what the last ranks hand on.
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
    /// The lender's batch, which `packed` is there, on all ranks; empty where nobody lacks one.
    std::string lend(const Round& round, const std::function<std::string()>& packed);

    EngineParts& parts_;
    JoinOptions options_;
    std::unique_ptr<Communicator> job_;
    std::map<GradientSync, Shadow> shadows_;
    std::int64_t forwards_ = 0;
    std::set<std::uint64_t> updated_by_;
};

}  // namespace lockstep
