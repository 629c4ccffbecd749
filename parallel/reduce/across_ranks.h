// What a program does across the shards of several processes: they tell each other what they have computed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/parallel/reduce/collectives.h"
#include "lockstep/parallel/schedule/gradient_reduction.h"

namespace lockstep {

class AcrossRanks final : public AcrossShards {
public:
    /// `fingerprint`: of what all ranks must do alike; where two ranks differ, all throw.
    AcrossRanks(Ranks& ranks, std::uint64_t fingerprint) : ranks_(ranks), fingerprint_(fingerprint) {}

    /// Gathered over the ranks.
    std::vector<MemoryRef> emit_inputs(ScheduleBuilder& builder, RecordPair records) override;
    /// With a report in which the ranks tell each other their shards' status, and rank 0 what only shard 0 has: the
    /// loss, and what records that commit read.
    std::vector<MemoryRef> emit_statuses(ScheduleBuilder& builder, int shards) override;
    TaskSpec commit_task(ScheduleBuilder& builder, const Record& record) override;
    MemoryRef loss(ScheduleBuilder& builder) override;

private:
    void emit_report(ScheduleBuilder& builder);
    /// Gathers the report with the fingerprints. `offsets`: where they lie in each rank's part.
    void emit_comparison(ScheduleBuilder& builder, const std::vector<std::size_t>& offsets);

    Ranks& ranks_;
    std::uint64_t fingerprint_;
    std::optional<RankParts> report_;
    std::size_t loss_ = 0;                            ///< byte of rank 0's part of the report
    std::map<int, std::size_t> values_;               ///< by trace id: likewise
    std::map<int, std::shared_ptr<Buffer>> between_;  ///< by trace id: what one commit leaves to the next
};

}  // namespace lockstep
