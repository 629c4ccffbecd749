// Turns a batch program into commands.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "lockstep/parallel/reduce/exchange.h"
#include "lockstep/parallel/schedule/placed_program.h"

namespace lockstep {

class ProgramPlacer {
public:
    ProgramPlacer(PlacedProgram& placed, EngineContext& context, UpdatePlan update);
    void place();

private:
    /// Records of one turn: number in the full shards' program and in the last shard's; -1 where it has ended.
    struct Turn {
        long full = -1, last = -1;
    };
    /// The turns that run records [first, last) of both programs side by side, spanning records on the same turn.
    std::vector<Turn> turns(std::size_t full_first, std::size_t full_last, std::size_t last_first,
                            std::size_t last_last) const;
    long index_of(const Turn& turn, int shard) const;

    void place_turn(const Turn& turn);
    void place_record(int shard, const Record& record, bool forward);
    void place_span(const Turn& turn);
    void place_agreement();
    /// Notes how a step ended that may have been skipped; the next one is not concerned.
    void place_forgetting_of_skip(int device);
    void place_commits();
    void place_commit_records(Stream& root);
    /// Sums elements [begin, end) of a segment over the shards of `node`.
    void place_fold(const GradientNode& node, int arena, int segment, std::int64_t begin, std::int64_t end,
                    const PlaceRef& sum);
    /// Sums that lie in arenas, as soon as a parameter's gradients are there.
    void place_folds(const Turn& done);
    /// When the bucket's turn has come: sums that lie in slots, and zeros where other ranks alone have gradients.
    void place_in_sums(const Bucket& bucket);
    void place_zeros(const GradientNode& node, DType dtype, std::int64_t elements, const PlaceRef& sum);
    void place_buckets(const Turn& done);
    /// Whoever comes next on any device waits for all of this program.
    void place_barrier(bool advances, bool whole_step);
    /// The same for a step that updates, with fewer streams on the way from its last record to the next step's first:
    /// what comes next on a device waits for what is committed there, and on the first one for all that is committed.
    void place_end_of_step();
    void place_advance(int device, bool whole_step);
    /// Moves the loss to where it stays until the host has read it.
    void place_loss_of_step();
    // Several processes alone (rank_placement.cpp).
    /// The inputs of a record that spans shards, those of all processes.
    std::vector<PlaceRef> gathered_over_ranks(const Turn& turn);
    /// The processes tell each other their shards' status, and rank 0 what only shard 0 has: the loss, and what records
    /// that commit read.
    void place_report_of_ranks();
    /// Gathers the report with a number that says which gradients come; where it differs the ranks give up.
    /// `offsets`: where it lies in each rank's part.
    void place_fingerprint(const std::vector<std::size_t>& offsets);
    /// A record that commits reads what rank 0 told.
    TaskSpec commit_task_of_ranks(const Record& record);
    // Micro-steps alone (micro_placement.cpp).
    /// Before everything: the state of the step where it begins, the pooled weights.
    void place_what_is_carried();
    void place_weights();
    /// Adds this micro-step's part of the loss.
    void place_loss();
    /// Brings the copy of the buffers forward.
    void place_preparations();
    /// The buffers become what the micro-steps made of their copy.
    void place_taking_over();
    /// Whoever comes next on any device waits for all of this program, which changes nothing that outlives the step.
    void place_end_of_micro_step();
    TaskSpec task_of(int shard, const Record& record, bool forward) const;
    /// All but inputs, outputs and scratch memory.
    TaskSpec bare_task(int replica, const Record& record) const;
    std::vector<int> record_lanes();
    std::vector<int> lanes_with_shards() const;

    PlacedProgram& placed_;
    EngineContext& context_;
    const BatchProgram& batch_;
    Schedule& schedule_;
    UpdatePlan update_;
    Reducer reducer_;
    Turn done_;                           ///< last records that were placed
    std::vector<std::size_t> next_fold_;  ///< by node in an arena: deliveries folded so far
    std::size_t next_bucket_ = 0;
    bool commits_ = false;
    /// What the processes tell each other before the first commit.
    struct Report {
        std::optional<RankParts> parts;
        std::size_t loss = 0;                            ///< byte of rank 0's part
        std::map<int, std::size_t> values;               ///< by trace id: likewise
        std::map<int, std::shared_ptr<Buffer>> between;  ///< by trace id: what one commit leaves to the next
    } report_;
};

}  // namespace lockstep
