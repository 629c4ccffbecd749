// Uneven inputs: ranks that have no batch left keep the others company until all have none.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/parallel/internal/engine_context.h"
#include "lockstep/parallel/internal/placed_program.h"
#include "lockstep/parallel/internal/reducer.h"

namespace lockstep {

/// One scope of join. Everything is collective; forwards of all ranks meet here one by one, on a communicator of its
/// own, so that steps under way need not be waited for.
class Join {
public:
    Join(EngineContext& context, const JoinOptions& options)
        : context_(context), options_(options), job_(context.job->duplicate("join")) {}

    /// What a rank without batches does with the others' forward and backward: the same as in its own last ones.
    struct Company {
        PlacedProgram* program = nullptr;
        std::shared_ptr<Instance> instance;  ///< keeps the program
        std::vector<BatchInput> inputs;
    };

    /// A forward that will have a backward. Returns by what its gradients are multiplied. Throws StepError where the
    /// scope ends with the first rank that has no batch left.
    double enter(GradientSync sync);
    /// What that forward was.
    void keep(Company company, GradientSync sync) { company_[sync] = std::move(company); }
    /// This rank has no batch left: `accompany(syncs)` for every forward of the others, until there is none.
    void leave(const std::function<void(bool syncs)>& accompany);
    /// Throws InvalidArgument where this rank has had no such forward.
    const Company& company(GradientSync sync) const;
    /// An optimizer has updated: its state is a part of what the last ranks hand on.
    void note(Optimizer& optimizer) { optimizers_[optimizer.id()] = &optimizer; }
    /// Everybody takes parameters, buffers and the state of optimizers from the rank that left last.
    void hand_on();

private:
    struct Round {
        int present, syncing;
    };
    Round meet(bool present, bool syncs);
    void require_going_on(const Round& round) const;

    EngineContext& context_;
    JoinOptions options_;
    std::unique_ptr<Communicator> job_;
    std::map<GradientSync, Company> company_;
    std::int64_t forwards_ = 0;
    std::map<std::uint64_t, Optimizer*> optimizers_;
};

}  // namespace lockstep
