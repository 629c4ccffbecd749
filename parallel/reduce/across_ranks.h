// Operations of a program across the shards of several processes, which exchange their values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/parallel/reduce/collectives.h"
#include "lockstep/parallel/schedule/gradient_reduction.h"

namespace lockstep {

class AcrossRanks final : public AcrossShards {
public:
    /// `fingerprint`: digest of everything that must be equal on all ranks; if two ranks differ, all throw.
    AcrossRanks(Ranks& ranks, std::uint64_t fingerprint) : ranks_(ranks), fingerprint_(fingerprint) {}

    // Gathers them over the ranks.
    std::vector<MemoryRef> emit_inputs(ScheduleBuilder& builder, RecordPair records) override;
    std::vector<MemoryRef> emit_outputs(ScheduleBuilder& builder) override;
    /// Emits a report with which the ranks exchange their shards' status. Rank 0 adds values that only shard 0 has: the
    /// loss, and the values that committing records read, or the microbatches' copies of the buffers.
    std::vector<MemoryRef> emit_statuses(ScheduleBuilder& builder, int shards) override;
    TaskSpec commit_task(ScheduleBuilder& builder, const Record& record) override;
    MemoryRef prepared(ScheduleBuilder& builder, const MemoryRef& buffer) override;
    MemoryRef loss(ScheduleBuilder& builder) override;

private:
    using OperandsOf = std::function<std::span<const Operand>(int shard)>;
    /// The operands of all present shards, in order of shards, on the stream of collectives.
    std::vector<MemoryRef> emit_gathering(ScheduleBuilder& builder, const OperandsOf& operands_of);
    void emit_report(ScheduleBuilder& builder);
    /// Adds space for the values of rank 0 at the end of its part of a report, of which `bytes` bytes are used.
    /// Returns, by offset, their locations on rank 0.
    std::map<std::size_t, MemoryRef> lay_out_news(ScheduleBuilder& builder, std::size_t& bytes);
    /// Gathers the report with the fingerprints, which are at `offsets` in each rank's part.
    void emit_comparison(ScheduleBuilder& builder, const std::vector<std::size_t>& offsets);

    Ranks& ranks_;
    std::uint64_t fingerprint_;
    std::optional<RankParts> report_;
    std::size_t loss_ = 0;                            ///< byte of rank 0's part of the report
    std::map<int, std::size_t> values_;               ///< by trace id: byte of rank 0's part of the report
    std::map<const Buffer*, std::size_t> prepared_;   ///< byte of rank 0's part of the report
    std::map<int, std::shared_ptr<Buffer>> between_;  ///< by trace id: values that one commit passes to the next
};

}  // namespace lockstep
