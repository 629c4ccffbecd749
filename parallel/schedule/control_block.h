// Words by which a device and the host exchange the status of a step.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/parallel/schedule/memory_ref.h"
#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/placement.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/status.h"

namespace lockstep {

/// Measurements of a step's gradients for adaptive rates.
struct MeasuredSquares {
    double of_shards = 0;     ///< sum over shards and microbatches: squared norm of its part of the gradient / its rows
    double norm_of_mean = 0;  ///< norm of the whole gradient
};

/// Control words of one device: StepCounters, the agreed status, the loss, the norm of the gradients that are clipped,
/// the outcome of a step that may be skipped, the measurements for adaptive rates, and one status word per shard.
class ControlBlock {
public:
    ControlBlock(Device device, int shards);
    StepCounters* step() const { return static_cast<StepCounters*>(memory_->data()); }
    StatusWord* agreed() const { return reinterpret_cast<StatusWord*>(at(1)); }
    const void* loss() const { return at(2); }  ///< loss of the last step, in its dtype
    const void* norm() const { return at(3); }  ///< norm of the last step's gradients before clipping, in f64
    /// Outcome of the last step that may have been skipped.
    const StatusWord* outcome() const { return reinterpret_cast<const StatusWord*>(at(4)); }
    const MeasuredSquares* squares() const { return reinterpret_cast<const MeasuredSquares*>(at(5)); }
    StatusWord* shard(int shard) const { return reinterpret_cast<StatusWord*>(at(first_shard + shard)); }

    MemoryRef step_ref() const { return fixed(memory_, 0, sizeof(StepCounters)); }
    MemoryRef agreed_ref() const { return fixed(memory_, spacing, sizeof(StatusWord)); }
    MemoryRef loss_ref(DType dtype) const { return fixed(memory_, 2 * spacing, size_of(dtype)); }
    MemoryRef norm_ref() const { return fixed(memory_, 3 * spacing, sizeof(double)); }
    MemoryRef outcome_ref() const { return fixed(memory_, 4 * spacing, sizeof(StatusWord)); }
    MemoryRef shard_squares_ref() const {
        return fixed(memory_, 5 * spacing + offsetof(MeasuredSquares, of_shards), sizeof(double));
    }
    MemoryRef mean_norm_ref() const {
        return fixed(memory_, 5 * spacing + offsetof(MeasuredSquares, norm_of_mean), sizeof(double));
    }
    MemoryRef shard_ref(int shard) const {
        return fixed(memory_, spacing * static_cast<std::size_t>(first_shard + shard), sizeof(StatusWord));
    }
    /// The status words of some shards, `spacing` bytes each.
    MemoryRef statuses(ShardRange shards) const {
        return fixed(memory_, spacing * static_cast<std::size_t>(first_shard + shards.first),
                     spacing * static_cast<std::size_t>(shards.size()));
    }
    /// All words.
    const Buffer& memory() const { return *memory_; }
    static constexpr std::size_t spacing = 64;  // one cache line each, because shards of one device report at the same
                                                // time

private:
    static constexpr int first_shard = 6;
    char* at(int slot) const { return static_cast<char*>(memory_->data()) + spacing * static_cast<std::size_t>(slot); }
    std::shared_ptr<Buffer> memory_;
};

}  // namespace lockstep
