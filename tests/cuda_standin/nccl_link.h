// The links between the ranks of a communicator of the NCCL stand-in: Unix sockets between processes of one host.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace standin {

/// What a sender says of its bytes; the receiver compares it with what it waits for.
struct Frame {
    std::uint64_t bytes;
    std::int32_t function;  // index of the operation
    std::int32_t type;
    std::int32_t op;
    std::int32_t root;
    bool operator==(const Frame&) const = default;
};

struct Transfer {
    int peer;
    bool out;
    char* data;  // only read where it goes out
    Frame frame;
};

class Link {
public:
    /// `name` is that of the meeting place; `gpu` tells the devices of this process apart.
    Link(std::string name, int rank, int size, int gpu);
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    /// The first thing that went wrong, or ncclSuccess.
    ncclResult_t error() const { return static_cast<ncclResult_t>(error_.load()); }

    /// Returns when every rank is there, on an error and on abort.
    void connect();
    /// Moves all of it, in order between any two ranks; what goes out is done when the peer has it. False where abort
    /// or a poisoned context ended it. A peer that has gone or sends something else sets error(), and nothing else ends
    /// the wait for it: as a kernel spins.
    bool run(const std::vector<Transfer>& transfers);
    /// From any thread: ends connect and run, now and from here on.
    void abort();
    /// Lets the peers see that this rank has gone. Not during connect.
    void hang_up();

private:
    struct Hello {
        std::int32_t rank, size, pid, gpu;
    };
    // Transfers with one peer in one direction; one byte comes back for each.
    struct Flow {
        std::vector<const Transfer*> queue;
        std::size_t at = 0;
        std::size_t done = 0;  // bytes of the one at `at`, with its frame
        std::size_t acknowledged = 0;
        Frame seen{};
        bool broken = false;

        bool open() const { return !broken && acknowledged < queue.size(); }
    };

    void fail(ncclResult_t error);
    int listen_here();
    void meet(int listener);
    void compare(const std::vector<Hello>& hellos);
    bool push(int peer, Flow& flow);
    bool pull(int peer, Flow& flow);

    std::string name_;
    int rank_;
    int size_;
    int gpu_;
    int wake_;                   // readable once aborted
    std::vector<int> out_, in_;  // by peer: data one way, acknowledgements the other
    std::atomic<bool> aborted_{false};
    std::atomic<int> error_{ncclSuccess};
};

}  // namespace standin
