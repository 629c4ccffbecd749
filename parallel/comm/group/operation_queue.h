// Pending operations of a group: collectives one after another in the order of the calls, and messages in parallel.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/parallel/comm/group/communicator.h"
#include "lockstep/parallel/comm/group/tensor_range.h"

namespace lockstep {

// Result of an operation for its waiters.

class WorkState {
public:
    void succeed(int source) { set(Status::succeeded, source, {}); }
    void fail(const std::string& message) { set(Status::failed, -1, message); }

    bool done() const;
    /// Returns false if it is not complete by then.
    bool wait_until(Deadline time) const;
    void wait() const;
    /// Throws CommunicationError if the operation failed. Valid only when it is complete.
    void check() const;
    int source() const;

private:
    enum class Status : unsigned char { pending, succeeded, failed };
    void set(Status status, int source, const std::string& message);

    mutable std::mutex mutex_;
    mutable std::condition_variable changed_;
    Status status_ = Status::pending;
    int source_ = -1;
    std::string message_;
};

/// A checked call of a collective.
struct Collective {
    TensorRange in = {}, out = {};
    /// `in`, `out`: first bytes of the ranges.
    std::function<void(Communicator&, const void* in, void* out)> make;
    bool reduces = false;  ///< computes, in addition to moving data
};

/// A checked call of send or recv.
struct MessageCall {
    TensorRange range;
    bool sends = false;
    int peer = 0;  ///< or any_source
    std::uint32_t tag = 0;
    std::string name() const;  ///< for errors: "receive from rank 2"
};

/// One thread at a time uses the communicator: the caller of a blocking operation, or the queue's thread, which is
/// started on first use. The thread that uses it also makes progress on all messages, even inside collectives.
/// Functions may be called from any thread.
class OperationQueue {
public:
    explicit OperationQueue(std::shared_ptr<Communicator> communicator);
    /// Aborts operations in flight, also on the other ranks; never waits for them.
    ~OperationQueue();
    OperationQueue(const OperationQueue&) = delete;
    OperationQueue& operator=(const OperationQueue&) = delete;

    /// Runs after all operations started before; throws their errors.
    void run(Collective call);
    std::shared_ptr<WorkState> start(Collective call);
    /// Returns the rank that sent the received message.
    int run(MessageCall call);
    std::shared_ptr<WorkState> start(MessageCall call);

private:
    struct Queued {
        Collective call;
        std::shared_ptr<WorkState> state;
    };
    struct Moving {
        MessageCall call;
        std::shared_ptr<WorkState> state;
        Deadline deadline;
        std::unique_ptr<Message> message = {};  ///< null until it has begun
    };

    std::shared_ptr<WorkState> post(MessageCall call);
    /// First byte of `range`; if this fails, the group has failed.
    std::byte* begin(TensorRange& range, std::optional<Device> gpu = {});
    /// The GPU that `range` may stay on for a call of this communicator.
    std::optional<Device> stays_on(const TensorRange& range) const;
    /// The GPU of the operands of `call`, if the backend can access its memory.
    std::optional<Device> gpu_of(const Collective& call) const;
    Communicator& communicator_on(Device gpu);
    void make(Collective& call);
    /// Makes progress on all messages; true if one has begun or completed.
    bool move_messages();
    /// Rank that sent a received message, -1 for a send; nullopt while it is in flight.
    std::optional<int> move(Moving& one);
    bool has_messages() const { return !posted_.empty() || !moving_.empty(); }
    void need_thread();  ///< call with the lock held
    void serve();
    /// No progress again: yields to other threads, then sleeps for a moment.
    void rest(std::unique_lock<std::mutex>& lock, int& quiet);
    void leave();  ///< call with the lock held; releases the communicator
    /// Completes `state` with its result and removes it from the operations in flight.
    void end(const std::shared_ptr<WorkState>& state, int source, const std::string& error);

    std::shared_ptr<Communicator> communicator_;
    /// Communicators for data on GPUs; used by the thread that uses the communicator, created on first use.
    std::map<Device, std::shared_ptr<Communicator>> on_gpus_;
    std::mutex mutex_;
    std::condition_variable wake_;  ///< for the queue's thread
    std::condition_variable free_;  ///< for callers that wait for the communicator
    bool occupied_ = false;         ///< a thread uses the communicator
    int callers_ = 0;               ///< number of threads that wait for it
    std::size_t under_way_ = 0;     ///< started but not completed
    bool stopping_ = false;
    std::deque<Queued> queued_;
    std::list<Moving> posted_;  ///< messages that have not begun
    std::list<Moving> moving_;  ///< used by the thread that uses the communicator
    std::thread thread_;
};

}  // namespace lockstep
