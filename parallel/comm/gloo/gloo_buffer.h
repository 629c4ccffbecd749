// Memory that Gloo sends from or receives into, with bounded waits.
//
// Gloo's own waits cannot be polled, each may take the whole remaining time, and they notice an expired deadline or a
// connection lost in the middle of a message late or never. So all waiting is done here, with the state that Gloo's
// unbound buffers store for derived classes.
#pragma once

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/unbound_buffer.h>

#include <chrono>
#include <memory>
#include <vector>

namespace lockstep {

/// Called repeatedly while a buffer waits.
class GlooWatch {
public:
    virtual ~GlooWatch() = default;
    /// Throws if waiting for `peer` has become pointless.
    virtual void keep_waiting(int peer) = 0;
};

class GlooBuffer final : public gloo::transport::tcp::UnboundBuffer {
public:
    GlooBuffer(GlooWatch& watch, const std::shared_ptr<gloo::transport::tcp::Context>& context, void* data,
               std::size_t bytes)
        : UnboundBuffer(context, data, bytes), watch_(watch) {}

    // Calls of Gloo's collectives. Their timeout argument is ignored: the watch has the deadline.
    bool waitRecv(int* rank, std::chrono::milliseconds) override;
    bool waitSend(int* rank, std::chrono::milliseconds) override;
    void send(int to, std::uint64_t slot, std::size_t offset, std::size_t bytes) override;
    void recv(int from, std::uint64_t slot, std::size_t offset, std::size_t bytes) override;
    void recv(std::vector<int> from, std::uint64_t slot, std::size_t offset, std::size_t bytes) override;

    /// Whether the last receive is complete.
    bool received();
    bool sent();
    /// As received; the next call refers to the next receive.
    bool take_received();
    /// Whether Gloo has reported the connection as lost.
    bool failed();

private:
    void wait(int& completions, std::condition_variable& changed, int peer);

    GlooWatch& watch_;
    int sends_to_ = -1, receives_from_ = -1;
};

}  // namespace lockstep
