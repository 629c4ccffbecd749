// Rendezvous of the processes of a job, and the store that they use to exchange addresses.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/parallel/comm/rank_info.h"
#include "lockstep/parallel/comm/store.h"

namespace lockstep {

class JobFailure;

/// Options of a Rendezvous.
struct RendezvousOptions {
    /// "env://": from `rank_info`. "tcp://HOST:PORT" and "file:///PATH": rank and world size are taken from the members
    /// below, from "?rank=R&world_size=N" in the URL, or from the environment.
    std::string init_method = "env://";
    std::optional<int> rank = {}, world_size = {};
    Store::Milliseconds time_limit = Store::default_timeout;
    /// Secret shared by all ranks; default: LOCKSTEP_STORE_TOKEN. Required if rank 0 can be reached from other
    /// machines, or if ranks belong to different users.
    std::string token = {};
};

/// A job whose processes have all arrived.
class Rendezvous {
public:
    /// Returns on every rank when all have arrived. Rank 0 serves the store; under torchrun, whose agent holds
    /// MASTER_PORT, on one of the following ports. Throws InvalidArgument for invalid options. Throws
    /// CommunicationError within time_limit if ranks do not arrive (naming them), if two processes have the same rank,
    /// or if world sizes differ.
    explicit Rendezvous(const RendezvousOptions& options = {});
    /// Rank 0 waits a few seconds for the others to leave, unless the job has failed.
    ~Rendezvous();
    Rendezvous(const Rendezvous&) = delete;
    Rendezvous& operator=(const Rendezvous&) = delete;

    const RankInfo& info() const { return info_; }
    int rank() const { return info_.rank; }
    int world_size() const { return info_.world_size; }
    const std::shared_ptr<Store>& store() const { return store_; }
    /// For groups: records that the job has failed.
    const std::shared_ptr<JobFailure>& failure() const { return failure_; }

private:
    void join(Store::Milliseconds time_limit);
    /// After the deadline: tells all ranks to stop waiting and throws, unless all have arrived meanwhile.
    void give_up(Store::Milliseconds time_limit);
    /// "ranks 1, 3 have not arrived".
    std::string missing() const;
    /// Leaves a job that is incomplete, and throws.
    [[noreturn]] void leave_incomplete_job(const std::string& reason) const;
    [[noreturn]] void fail(const std::string& reason) const;
    /// Called when one of the `ranks` arrived ranks leaves. The last one removes the file; rank 0, which serves the
    /// store, waits for it.
    void leave(Store& store, std::int64_t ranks, Store::Milliseconds patience) const;
    RankInfo info_;
    std::shared_ptr<FileStore> file_;  ///< set if the store is a file, which the last rank removes
    std::unique_ptr<TcpStoreServer> server_;
    /// A connection whose loss tells the store's server that this process has died.
    std::unique_ptr<TcpStore> presence_;
    std::shared_ptr<Store> store_;
    std::shared_ptr<JobFailure> failure_;
};

}  // namespace lockstep
