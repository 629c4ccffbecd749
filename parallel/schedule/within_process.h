// All shards are computed by this process, so a shard's values for another one are on one of its devices.
#pragma once

#include "lockstep/parallel/schedule/gradient_reduction.h"

namespace lockstep {

class WithinProcess final : public AcrossShards {
public:
    std::vector<MemoryRef> emit_inputs(ScheduleBuilder& builder, RecordPair records) override;
    std::vector<MemoryRef> emit_outputs(ScheduleBuilder& builder) override;
    std::vector<MemoryRef> emit_statuses(ScheduleBuilder& builder, int shards) override;
    TaskSpec commit_task(ScheduleBuilder& builder, const Record& record) override;
    MemoryRef prepared(ScheduleBuilder& builder, const MemoryRef& buffer) override;
    MemoryRef loss(ScheduleBuilder& builder) override;
};

}  // namespace lockstep
