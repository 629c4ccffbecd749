// Process groups: collectives and messages between the processes of a job. What torch.distributed is to PyTorch.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/parallel/rendezvous.h"

namespace lockstep {

class Communicator;

/// mean: the sum divided by the number of ranks; integers are truncated towards zero. Booleans: sum and max are "or",
/// product and min are "and", and there is no mean.
enum class ReduceOp : std::uint8_t { sum, mean, min, max, product };

struct ProcessGroupOptions {
    /// "shm" (ranks of one host), "gloo", "mpi"; empty: shm where all ranks are on one host, else gloo.
    std::string backend = {};
    /// How the processes find each other.
    RendezvousOptions rendezvous = {};
    /// A collective that takes longer fails on every rank.
    std::chrono::milliseconds timeout = Store::default_timeout;
};

/// All processes of a job. Made by every one of them, at the same time; destroyed by each when it likes: whoever still
/// waits for it then gets an error.
class ProcessGroup {
public:
    /// Returns once all processes are there and connected. Throws InvalidArgument for a backend that does not exist or
    /// was not built in (saying how to build it), and what Rendezvous throws.
    explicit ProcessGroup(const ProcessGroupOptions& options = {});
    ~ProcessGroup();
    ProcessGroup(const ProcessGroup&) = delete;
    ProcessGroup& operator=(const ProcessGroup&) = delete;

    int rank() const { return rendezvous_->rank(); }
    int size() const { return rendezvous_->world_size(); }
    /// Of this host.
    int local_rank() const { return rendezvous_->place().local_rank; }
    std::string_view backend() const;
    const std::shared_ptr<Store>& store() const { return rendezvous_->store(); }

    /// Returns when all ranks have called it.
    void barrier();
    /// The same ranks for somebody else's operations, whose order is then their own. Collective.
    std::shared_ptr<Communicator> communicator(std::string_view purpose) const;

private:
    std::unique_ptr<Rendezvous> rendezvous_;
    std::shared_ptr<Communicator> communicator_;
};

}  // namespace lockstep
