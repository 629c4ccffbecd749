// Emits the commands of a batch program, piece by piece; recipes (recipes.h) select the pieces of a schedule.
#pragma once

#include <optional>
#include <vector>

#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/parallel/program/parameter_casts.h"
#include "lockstep/parallel/schedule/emitter.h"
#include "lockstep/parallel/schedule/gradient_reduction.h"
#include "lockstep/parallel/schedule/microbatch_carry.h"
#include "lockstep/parallel/schedule/shard_memory.h"

namespace lockstep {

class ScheduleBuilder {
public:
    /// `reduction`: null for a program without gradients.
    ScheduleBuilder(const Emitter& emitter, const BatchProgram& batch, const ShardMemory& memory, AcrossShards& across,
                    GradientReduction* reduction)
        : emitter_(emitter), batch_(batch), memory_(memory), across_(across), reduction_(reduction) {}

    Emitter& emitter() { return emitter_; }
    const BatchProgram& batch() const { return batch_; }
    const ShardMemory& memory() const { return memory_; }
    const Topology& topology() const { return emitter_.topology(); }
    /// The microbatch that is emitted; null for a program that is not part of a step in microbatches.
    const Microbatch* part() const { return part_; }

    // The records of shards.

    /// The casts of parameters for all shards of a device, and the records.
    void emit_forward();
    /// Backward, and the reduction of every bucket as soon as backward has completed it.
    void emit_backward();
    const Record& record_of(int shard, RecordPair records) const;
    TaskSpec task_of(int shard, const Record& record, bool forward) const;
    /// The task without its inputs, outputs and scratch memory.
    TaskSpec bare_task(DeviceIndex replica, const Record& record) const;
    /// Whether some shard of the lane has rows.
    bool has_rows(const ComputeLane& lane) const { return !lane.shards.among(batch_.cut.present).empty(); }
    /// One event per lane, of all devices or of one, after everything enqueued there; none for lanes whose shards have
    /// no rows.
    std::vector<int> record_lanes();
    std::vector<int> record_lanes_of(DeviceIndex device);

    // Other parts of a step.

    /// Whether a record draws random numbers.
    bool draws_numbers() const;
    /// Whether a record changes persistent state.
    bool has_commits() const { return batch_.full->backward_begin > batch_.full->commit_begin; }
    /// The devices agree on the status of the first `shards` shards.
    void emit_agreement(int shards);
    void emit_agreement() { emit_agreement(batch_.cut.present); }
    /// Records that commit, and the copies of the state that they changed.
    void emit_commits();
    /// The loss of the step, or of its microbatches so far, on the device that computes shard 0.
    MemoryRef loss_of_shard_0() const { return part_ ? part_->carry->loss() : memory_.ref(0, batch_.of(0).loss); }
    /// Moves the loss to memory that is valid until the host has read it.
    void emit_loss();
    /// After backward: moves the measurements of the shards' gradients to the host's block, or adds them to those of
    /// earlier microbatches. Does nothing without measurements.
    void emit_squares();
    /// Later work on any device waits for all of this program, which is counted if it is good.
    void emit_barrier(std::optional<Counted> counted);
    /// The same for a step that updates, with fewer streams between its last record and the next step's first one:
    /// later work on a device waits for the commits there, and on the first device for all commits.
    void emit_end_of_step();

    // Microbatches.

    /// Loads the state of earlier microbatches: counters for random numbers, buffers, denominators. Records emitted
    /// from now on read it.
    void begin_microbatch(const Microbatch& part);
    /// Adds this microbatch's part of the loss.
    void emit_loss_so_far();
    /// Emits the records that commit, on the microbatches' copy of the buffers, on the device that computes shard 0.
    void emit_preparations();
    /// Copies the buffers prepared by the microbatches to every process.
    void emit_prepared_commits();
    /// Sums the outputs, which are denominators, over shards and microbatches.
    void emit_denominators();
    /// Later work on any device waits for all of this program, which changes no persistent state.
    void emit_end_of_microbatch();

private:
    std::vector<RecordPair> pairs(std::size_t full_first, std::size_t full_last, std::size_t last_first,
                                  std::size_t last_last) const;
    /// Loads the scale of the loss.
    void emit_loss_scale();
    void emit_parameter_casts();
    void emit_casts(Stream& stream, DeviceIndex device, int set, const std::vector<CastRange>& ranges);
    void emit_records(RecordPair records);
    void emit_across_shards(RecordPair records);
    /// Emits the records that commit, on `stream` of the first device.
    void emit_commit_records(Stream& stream);
    void emit_copies_of_buffers();
    void emit_state_of_microbatch();
    /// The first microbatch copies `part` to `sum`; later ones add theirs. Scalars of `dtype` on the first device.
    void emit_sum_so_far(Stream& stream, DType dtype, const MemoryRef& part, const MemoryRef& sum);
    void emit_advance(DeviceIndex device, Counted counted);
    /// Saves the outcome of a step that may have been skipped, and clears the status for the next one.
    void emit_forgetting_of_skip(DeviceIndex device);

    Emitter emitter_;
    const BatchProgram& batch_;
    const ShardMemory& memory_;
    AcrossShards& across_;
    GradientReduction* reduction_;
    const Microbatch* part_ = nullptr;
};

}  // namespace lockstep
