// What a group has to do: collectives one after another in the order of the calls, messages beside them.
#pragma once

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
#include "lockstep/parallel/comm/group/work_state.h"

namespace lockstep {

/// A checked call of a collective.
struct Collective {
    TensorRange in = {}, out = {};
    /// `in`, `out`: first bytes of the ranges.
    std::function<void(Communicator&, const void* in, void* out)> make;
    bool reduces = false;  ///< it computes, not only moves
};

/// A checked call of send or recv.
struct Transfer {
    TensorRange range;
    bool sends = false;
    int peer = 0;  ///< or any_source
    std::uint32_t tag = 0;
    std::string name() const;  ///< for errors: "receive from rank 2"
};

/// The communicator is used by one thread at a time: by the caller of what blocks, else by the queue's own, which is
/// started when it is first needed. Whoever has it moves all messages on, inside collectives too. May be called from
/// any thread.
class OperationQueue {
public:
    explicit OperationQueue(std::shared_ptr<Communicator> communicator);
    /// Gives up what is under way, on the other ranks too; never waits for them.
    ~OperationQueue();
    OperationQueue(const OperationQueue&) = delete;
    OperationQueue& operator=(const OperationQueue&) = delete;

    /// After what has been started; throws what it throws.
    void run(Collective call);
    std::shared_ptr<WorkState> start(Collective call);
    /// Returns who sent what was received.
    int run(Transfer transfer);
    std::shared_ptr<WorkState> start(Transfer transfer);

private:
    struct Queued {
        Collective call;
        std::shared_ptr<WorkState> state;
    };
    struct Moving {
        Transfer transfer;
        std::shared_ptr<WorkState> state;
        Deadline deadline;
        std::unique_ptr<Message> message = {};  ///< once it has begun
    };

    std::shared_ptr<WorkState> post(Transfer transfer);
    /// Of `range`; where that fails the group has failed.
    std::byte* begin(TensorRange& range, std::optional<Device> gpu = {});
    /// The GPU that `range` may stay on for a call of this communicator.
    std::optional<Device> stays_on(const TensorRange& range) const;
    /// Where what `call` is about lies, if its memory can be moved there.
    std::optional<Device> gpu_of(const Collective& call) const;
    Communicator& communicator_on(Device gpu);
    void make(Collective& call);
    /// Moves all messages on; whether one has begun or ended.
    bool move_messages();
    /// Who sent what was received, -1 for what was sent; nothing while it is under way.
    std::optional<int> move(Moving& one);
    bool has_messages() const { return !posted_.empty() || !moving_.empty(); }
    void need_thread();  ///< under the lock
    void serve();
    /// Nothing has moved, again: looks after other threads, then sleeps for a moment.
    void rest(std::unique_lock<std::mutex>& lock, int& quiet);
    void leave();  ///< under the lock: the communicator is free
    /// Tells who waits for `state` how it ended, and nothing more of it is under way.
    void end(const std::shared_ptr<WorkState>& state, int source, const std::string& error);

    std::shared_ptr<Communicator> communicator_;
    /// Beside it, for what lies on GPUs; of the thread that uses the communicator, made when first needed.
    std::map<Device, std::shared_ptr<Communicator>> on_gpus_;
    std::mutex mutex_;
    std::condition_variable wake_;  ///< of the own thread
    std::condition_variable free_;  ///< of callers that wait for the communicator
    bool occupied_ = false;         ///< some thread uses the communicator
    int callers_ = 0;               ///< wait for it
    std::size_t under_way_ = 0;     ///< started, and nobody has been told how they ended
    bool stopping_ = false;
    std::deque<Queued> queued_;
    std::list<Moving> posted_;  ///< messages that have not begun
    std::list<Moving> moving_;  ///< of the thread that uses the communicator
    std::thread thread_;
};

}  // namespace lockstep
