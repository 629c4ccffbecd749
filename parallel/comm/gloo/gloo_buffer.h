// Memory that Gloo sends from or receives into, waited for in our way.
//
// Gloo's own waits cannot ask without waiting, each takes the whole time that is left, and a time that is up, or a
// connection lost in the middle of a message, is seen late or never. So all waiting is done here, on what Gloo's
// unbound buffers keep for classes derived from them.
#pragma once

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/unbound_buffer.h>

#include <chrono>
#include <memory>
#include <vector>

namespace lockstep {

/// Asked again and again while a buffer waits.
class GlooWatch {
public:
    virtual ~GlooWatch() = default;
    /// Throws when waiting for `peer` has become pointless.
    virtual void keep_waiting(int peer) = 0;
};

class GlooBuffer final : public gloo::transport::tcp::UnboundBuffer {
public:
    GlooBuffer(GlooWatch& watch, const std::shared_ptr<gloo::transport::tcp::Context>& context, void* data,
               std::size_t bytes)
        : UnboundBuffer(context, data, bytes), watch_(watch) {}

    // Calls of Gloo's collectives. Their timeout argument is ignored: the watch knows the deadline.
    bool waitRecv(int* rank, std::chrono::milliseconds) override;
    bool waitSend(int* rank, std::chrono::milliseconds) override;
    void send(int to, std::uint64_t slot, std::size_t offset, std::size_t bytes) override;
    void recv(int from, std::uint64_t slot, std::size_t offset, std::size_t bytes) override;
    void recv(std::vector<int> from, std::uint64_t slot, std::size_t offset, std::size_t bytes) override;

    /// Whether what was begun last is done.
    bool received();
    bool sent();
    /// As received; the next call is about the next one.
    bool take_received();
    /// Whether Gloo has told that the connection is lost.
    bool failed();

private:
    void wait(int& completions, std::condition_variable& changed, int peer);

    GlooWatch& watch_;
    int sends_to_ = -1, receives_from_ = -1;
};

}  // namespace lockstep
