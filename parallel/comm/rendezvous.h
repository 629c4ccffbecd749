// How the processes of a job find each other, and the store through which they talk at first.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/parallel/comm/rank_info.h"
#include "lockstep/parallel/comm/store.h"

namespace lockstep {

class JobFailure;

struct RendezvousOptions {
    /// "env://": as `rank_info` says; "tcp://HOST:PORT" and "file:///PATH": rank and world size are given below, by
    /// "?rank=R&world_size=N" after it, or by the environment.
    std::string init_method = "env://";
    std::optional<int> rank = {}, world_size = {};
    Store::Milliseconds time_limit = Store::default_timeout;
    /// Shared by all ranks; needed where rank 0 can be reached from other machines, or ranks belong to several users.
    /// LOCKSTEP_STORE_TOKEN unless set.
    std::string token = {};
};

/// A job whose processes have all arrived.
class Rendezvous {
public:
    /// Returns on every rank once all are there. Rank 0 serves the store; under torchrun, whose agent holds
    /// MASTER_PORT, on one of the next ports. Throws InvalidArgument for what cannot be, and CommunicationError, within
    /// the time_limit, when ranks do not arrive (naming them), a rank is there twice or world sizes differ.
    explicit Rendezvous(const RendezvousOptions& options = {});
    /// Rank 0 gives the others a few seconds to take their leave, unless the job has failed.
    ~Rendezvous();
    Rendezvous(const Rendezvous&) = delete;
    Rendezvous& operator=(const Rendezvous&) = delete;

    const RankInfo& info() const { return info_; }
    int rank() const { return info_.rank; }
    int world_size() const { return info_.world_size; }
    const std::shared_ptr<Store>& store() const { return store_; }
    /// For groups: where they say that the job cannot go on.
    const std::shared_ptr<JobFailure>& failure() const { return failure_; }

private:
    void join(Store::Milliseconds time_limit);
    /// After the deadline: says to all that nobody needs to wait any longer, and throws, unless all are there by now.
    void give_up(Store::Milliseconds time_limit);
    /// "ranks 1, 3 have not arrived".
    std::string missing() const;
    /// Leaves a job that has not come together, and throws.
    [[noreturn]] void give_in(const std::string& reason) const;
    [[noreturn]] void fail(const std::string& reason) const;
    /// One of `ranks` that came goes. The last one removes the file; rank 0, which serves the store, waits for it.
    void leave(Store& store, std::int64_t ranks, Store::Milliseconds patience) const;
    RankInfo info_;
    std::shared_ptr<FileStore> file_;  ///< where the store is one: removed by the last rank
    std::unique_ptr<TcpStoreServer> server_;
    std::unique_ptr<TcpStore> presence_;  ///< a connection that the store's server sees end when this process dies
    std::shared_ptr<Store> store_;
    std::shared_ptr<JobFailure> failure_;
};

}  // namespace lockstep
