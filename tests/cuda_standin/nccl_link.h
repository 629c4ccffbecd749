// The links between the ranks of a communicator of the NCCL stand-in: Unix sockets between processes of one host.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace standin {

/// Description of the sender's bytes; the receiver compares it with what it expects.
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
    char* data;  // only read if `out`
    Frame frame;
};

class Link {
public:
    /// `name` identifies the communicator; `gpu` distinguishes the devices of this process.
    Link(std::string name, int rank, int size, int gpu);
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    /// The first error, or ncclSuccess.
    ncclResult_t error() const { return static_cast<ncclResult_t>(error_.load()); }

    /// Returns when all ranks are connected, on an error and on abort.
    void connect();
    /// Performs all transfers, in order between any two ranks; a send is complete when the peer has the data. False if
    /// abort or a poisoned context ended it. A peer that has left or sends something else sets error(), and nothing
    /// else ends the wait, as in a spinning kernel.
    bool run(const std::vector<Transfer>& transfers);
    /// From any thread: ends connect and run, now and in the future.
    void abort();
    /// Notifies the peers that this rank has left. Not during connect.
    void hang_up();

private:
    struct Hello {
        std::int32_t rank, size, pid, gpu;
    };
    // Transfers with one peer in one direction; the receiver acknowledges each with one byte.
    struct Flow {
        std::vector<const Transfer*> queue;
        std::size_t at = 0;
        std::size_t done = 0;  // bytes of the transfer at `at`, including its frame
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
