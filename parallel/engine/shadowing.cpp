// Work of a rank without batches in join: it shadows the collectives of the ranks that still have some.
#include "lockstep/parallel/engine/training_run.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

ScheduledProgram& TrainingRun::program_for(const Join::Shadow& shadow, GradientSync sync) {
    if (parts_->ranks.agreement() && sync != GradientSync::none) {
        UsedParameters used(parts_->memory, *shadow.batch);
        used.use_none();
        return scheduled_together(shadow.batch, used, {.sync = sync});
    }
    return shadow.program ? *shadow.program : cache_.scheduled(shadow.batch, {.sync = sync}, nullptr);
}

Join::Shadow TrainingRun::shadow_of(const std::vector<Tensor>& lent, const ModelCall& call) {
    Join::Shadow shadow{nullptr, {lent.begin(), lent.end()}};
    const BatchInputs batch(*parts_, shadow.inputs, true);
    const std::vector<bool> wants(lent.size(), false);
    shadow.batch = cache_.traced({call, Pass::training, batch.metas(), wants}, batch.cut()).batch;
    return shadow;
}

void TrainingRun::shadow_others(const Join::Shadow& shadow, GradientSync sync) {
    const int slot = in_flight_.begin();
    BatchInputs batch(*parts_, shadow.inputs, true);
    ScheduledProgram& program = program_for(shadow, sync);
    const auto instance = program.acquire();
    enqueue_forward(program, *instance, batch, slot);
    manual_.backward_without_gradients(program, *instance, sync);
}

void TrainingRun::begin_join(const JoinOptions& options) {
    if (!parts_->ranks.job())
        throw InvalidArgument(
            "join requires several processes; expected a DistributedDataParallel of more than one rank");
    if (in_join()) throw InvalidArgument("join: called inside another join");
    manual_.join = std::make_unique<Join>(*parts_, options);
}

void TrainingRun::end_join(const std::function<ModelCall(std::size_t tensors)>& forward_of) {
    struct SyncAsBefore {
        ManualStep& manual;
        bool synced = manual.syncs();
        ~SyncAsBefore() { manual.set_sync(synced); }
    };
    const SyncAsBefore restore{manual_};
    Join& join = *manual_.join;
    join.leave([&](bool syncs, const std::vector<Tensor>& lent) {
        manual_.set_sync(syncs);
        manual_.forget_shared_gradients();
        const GradientSync sync = manual_.sync();
        if (!lent.empty()) join.keep(shadow_of(lent, forward_of(lent.size())), sync);
        shadow_others(join.shadow(sync), sync);
    });
    synchronize();
    join.hand_on();
    abort_join();
    parts_->memory.store()->touch_parameters();
    replicas_.mark_current();
}

}  // namespace lockstep
