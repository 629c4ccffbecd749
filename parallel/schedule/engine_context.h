// What all programs of one engine share: devices, lanes, replicas and the control words of every device.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/arena.h"
#include "lockstep/parallel/comm/group/communicator.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/engine/stop_agreement.h"
#include "lockstep/parallel/reduce/arena_cut.h"
#include "lockstep/parallel/schedule/schedule.h"
#include "lockstep/runtime/internal/eager_reports.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/placement.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/status.h"

namespace lockstep {

/// Where a step's numbers lie on the first device; nowhere by default.
struct StepNumbers {
    const void* loss = nullptr;
    DType loss_dtype = DType::f32;
    const void* norm = nullptr;           ///< of the gradients (f64)
    const StatusWord* outcome = nullptr;  ///< null: the agreed word
};

/// Control words of one device: StepState, the agreed status, the loss, the norm of the gradients, the outcome of a
/// step that may be skipped, and one status word a shard.
class ControlBlock {
public:
    ControlBlock(Device device, int shards);
    StepState* step() const { return static_cast<StepState*>(memory_->data()); }
    StatusWord* agreed() const { return reinterpret_cast<StatusWord*>(at(1)); }
    const void* loss() const { return at(2); }  ///< of the last step, in its dtype
    const void* norm() const { return at(3); }  ///< of the last step's gradients, in f64
    /// Of the last step that may have been skipped.
    const StatusWord* outcome() const { return reinterpret_cast<const StatusWord*>(at(4)); }
    StatusWord* shard(int shard) const { return reinterpret_cast<StatusWord*>(at(first_shard + shard)); }
    const std::shared_ptr<Buffer>& memory() const { return memory_; }
    /// Where the status words of some shards lie, `spacing` bytes each.
    PlaceRef statuses(ShardRange shards) const {
        return fixed(memory_, spacing * static_cast<std::size_t>(first_shard + shards.first),
                     spacing * static_cast<std::size_t>(shards.size()));
    }
    PlaceRef agreed_place() const { return fixed(memory_, spacing, sizeof(StatusWord)); }
    PlaceRef loss_place(DType dtype) const { return fixed(memory_, 2 * spacing, size_of(dtype)); }
    PlaceRef norm_place() const { return fixed(memory_, 3 * spacing, sizeof(double)); }
    PlaceRef outcome_place() const { return fixed(memory_, 4 * spacing, sizeof(StatusWord)); }
    static constexpr std::size_t spacing = 64;  // a cache line each: shards of one device report at the same time

private:
    static constexpr int first_shard = 5;
    char* at(int slot) const { return static_cast<char*>(memory_->data()) + spacing * static_cast<std::size_t>(slot); }
    std::shared_ptr<Buffer> memory_;
};

/// Wherever the other processes may wait for this one.
struct OtherRanks {
    std::shared_ptr<Communicator> job, agreement;  ///< see EngineContext
    std::shared_ptr<const ReductionHook> hook;
    void abort(const std::string& reason) const;
};

struct EngineContext {
    Devices devices;
    int shards = 1;
    int threads = 1;  ///< CPU threads a shard is computed with
    bool deterministic = false;
    ConvAlgorithm convolution = ConvAlgorithm::automatic;
    ReductionMode reduction = ReductionMode::root;
    std::size_t kept_programs = 64;
    bool find_unused = false;   ///< see EngineOptions::find_unused_parameters
    bool static_graph = false;  ///< see EngineOptions
    /// Parameters (arena, segment) that the first program used, where the graph is static.
    std::optional<std::set<std::pair<int, int>>> used_parameters;
    std::shared_ptr<Communicator> job;      ///< the processes that train together; null: this one trains alone
    std::shared_ptr<Communicator> gpu_job;  ///< the same, enqueued on the exchange stream; null: the host makes it
    /// Where their hosts agree on the parameters that a program uses; null: all use the same ones.
    std::shared_ptr<Communicator> agreement;
    std::shared_ptr<const ReductionHook> hook;  ///< brings gradients together instead; may be null
    ShardRange held;                            ///< shards that this process computes
    std::vector<Lane> lanes;
    std::vector<Stream*> compute_streams;                        ///< one a lane
    std::vector<Stream*> communication_streams, commit_streams;  ///< one a device
    std::shared_ptr<ParameterStore> store;
    std::optional<ArenaCut> cut;
    std::vector<ControlBlock> control;  ///< one a device
    std::shared_ptr<Health> health = std::make_shared<Health>();
    std::shared_ptr<StopAgreement> stops = std::make_shared<StopAgreement>();
    std::shared_ptr<StepRecorder> recorder;  ///< of a log of steps; null: none is kept

    EngineContext(Devices d) : devices(std::move(d)) {}  // NOLINT(google-explicit-constructor)
    Stream& compute(int lane) const { return *compute_streams[static_cast<std::size_t>(lane)]; }
    /// Where gradients are summed: nothing there changes what a step may not change unless it is good.
    Stream& communicate(int device) const { return *communication_streams[static_cast<std::size_t>(device)]; }
    /// Where everything is changed that outlives a step: parameters, optimizer state, buffers, counters, gradients that
    /// backward adds to.
    Stream& commit(int device) const { return *commit_streams[static_cast<std::size_t>(device)]; }
    /// Where this process talks to the others. Everything there is enqueued in the same order by all of them.
    Stream& exchange() const { return Stream::of(devices[0], StreamRole::exchange); }
    int lane_of(int shard) const;
    int ranks() const { return job ? job->size() : 1; }
    int rank() const { return job ? job->rank() : 0; }
    OtherRanks others() const { return {job, agreement, hook}; }
    /// The process that computes a shard.
    int rank_of(int shard) const;
    /// Shards that a process computes, of those present.
    ShardRange held_by(int rank, int present) const { return run_of(rank, ranks(), shards).among(present); }
    /// What `optimizer` keeps on a device that updates, made on first use.
    OptimizerState& state(Optimizer& optimizer, int device) const {
        return optimizer.state_on(devices[device], cut->state_elements(device));
    }
    /// What eager calls that the model's values depend on may have found: those that made inputs or gradients.
    eager_reports::Set eager;
    /// The model's tensors, or its gradients, depend on them from now on.
    void pass_on_eager_reports(bool gradients) const;
    /// Scratch memory of at least `bytes` bytes that all tasks of `stream` share.
    std::shared_ptr<Buffer> scratch(Stream& stream, std::size_t bytes);
    /// Likewise for what tasks of `stream` leave to the next ones of theirs.
    std::shared_ptr<Buffer> temporaries(Stream& stream, std::size_t bytes);
    /// Pinned memory of at least `bytes` bytes that all operations of the exchange stream share, where the host cannot
    /// use the device's.
    std::shared_ptr<Buffer> exchange_staging(std::size_t bytes);
    /// There: a status word on the device, behind the exchange placed last; bad once one has failed. Null before.
    std::optional<PlaceRef> exchange_status;
    /// Arenas on device 0 for a sum that is added to the gradient arena once it is complete; made on first use.
    const std::vector<std::shared_ptr<Buffer>>& sums_to_add();
    /// Memory on `device` for `turns` buckets of any size, of whole 256 bytes each; made on first use.
    const std::shared_ptr<Buffer>& slot(int device, int index, int turns);

    /// Memory for the slices of a bucket that the processes send this one, a piece for each of them.
    const std::shared_ptr<Buffer>& received(int index);

private:
    std::map<Stream*, std::shared_ptr<Buffer>> scratches_, temporaries_;
    std::shared_ptr<Buffer> exchange_staging_;
    std::vector<std::shared_ptr<Buffer>> received_;
    std::vector<std::shared_ptr<Buffer>> sums_to_add_;
    std::map<std::pair<int, int>, std::shared_ptr<Buffer>> slots_;
};

/// Copies of constants (tensors that a model or a loss captured) on every device, refreshed when they change.
class ConstantCache {
public:
    /// Copies `storage` to all devices unless that version is there already. Waits for the copies.
    void refresh(const EngineContext& context, const std::shared_ptr<Storage>& storage);
    const std::shared_ptr<Buffer>& on(const std::shared_ptr<Storage>& storage, int device) const;
    /// Forgets the copies of all others.
    void keep_only(const std::function<bool(const Storage&)>& wanted) {
        std::erase_if(copies_, [&](const auto& entry) { return !wanted(*entry.first); });
    }

private:
    struct Copies {
        std::shared_ptr<Storage> storage;  // kept, so that its address stays its own
        std::uint64_t version = 0;
        std::vector<std::shared_ptr<Buffer>> buffers;
    };
    std::map<const Storage*, Copies> copies_;
};

}  // namespace lockstep
