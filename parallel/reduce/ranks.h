// The processes that train one model together, as seen by one of them. Empty without a job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "lockstep/ops/arena.h"
#include "lockstep/parallel/comm/gradient_bucket.h"
#include "lockstep/parallel/comm/group/communicator.h"
#include "lockstep/parallel/reduce/stop_agreement.h"
#include "lockstep/parallel/schedule/health.h"
#include "lockstep/parallel/schedule/memory_ref.h"

namespace lockstep {

/// Communicators through which other processes may wait for this one.
struct OtherRanks {
    std::shared_ptr<Communicator> job, agreement;  ///< see Ranks
    std::shared_ptr<const ReductionHook> hook;
    void abort(const std::string& reason) const;
};

/// The parameters that get gradients; by default all.
struct ParameterUse {
    bool found = false;          ///< find_unused_parameters: those that any rank uses
    bool same_as_first = false;  ///< static_graph: those that the first program used
};

class Ranks {
public:
    Ranks(std::shared_ptr<Communicator> job, ParameterUse use) : job_(std::move(job)), use_(use) {}
    /// Creates the other communicators, after all ranks have agreed on their options. Collective.
    void connect(Device device, Stream& collective);

    /// Null without a job.
    Communicator* job() const { return job_.get(); }
    /// The same ranks for collectives enqueued on the stream of collectives of a GPU; null: the host makes them.
    std::shared_ptr<Communicator> on_gpu() const { return hook_ ? nullptr : on_gpu_; }
    /// Communicator on which the hosts agree on the parameters that a program uses; null: all use the same ones.
    Communicator* agreement() const { return agreement_.get(); }
    const std::shared_ptr<const ReductionHook>& hook() const { return hook_; }
    void set_hook(ReductionHook hook) { hook_ = std::make_shared<const ReductionHook>(std::move(hook)); }
    const std::shared_ptr<StopAgreement>& stops() const { return stops_; }

    OtherRanks others() const { return {job_, agreement_, hook_}; }
    /// Whether a failure in this process refuses a step. Processes that train together refuse a step at the same call,
    /// so a process that failed in forward waits for its report.
    bool refuses(const Health& health) const { return job_ ? health.failed_step >= 0 : health.failed.load(); }
    /// Throws CommunicationError if an operation enqueued on a GPU was aborted.
    void check_gpu() const {
        if (on_gpu_) on_gpu_->check();
    }
    /// Throws InvalidArgument, naming one, if a program gives gradients to other parameters than it may.
    void require_allowed(const std::set<ParameterId>& used, const ParameterStore& store);

    /// Pinned memory of at least `bytes` bytes that all collectives share, if the host cannot access the device's.
    std::shared_ptr<Buffer> staging(std::size_t bytes);
    /// If collectives are staged: a status word on the device, written after the last emitted one; it is bad after a
    /// failure. Empty before the first.
    std::optional<MemoryRef> status;

private:
    std::shared_ptr<Communicator> job_, on_gpu_, agreement_;
    std::shared_ptr<const ReductionHook> hook_;
    std::shared_ptr<StopAgreement> stops_ = std::make_shared<StopAgreement>();
    ParameterUse use_;
    std::optional<std::set<ParameterId>> first_used_;  ///< by the first program
    std::shared_ptr<Buffer> staging_;
};

}  // namespace lockstep
