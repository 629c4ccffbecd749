// The connections of a group: Gloo's context with our buffers, made through our store.
#pragma once

#include <gloo/rendezvous/context.h>

#include <atomic>
#include <csignal>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/parallel/comm/gloo/gloo_buffer.h"
#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/runtime/internal/held_signal.h"

namespace lockstep {

class GlooMesh {
public:
    /// Connects all ranks. Throws TransportError.
    GlooMesh(const GroupInfo& info, GlooWatch& watch);

    const std::shared_ptr<gloo::rendezvous::Context>& context() const { return context_; }
    std::unique_ptr<GlooBuffer> buffer(void* data, std::size_t bytes) const;

    /// Calls Gloo. Every exception becomes a TransportError and ends the mesh.
    template <class Call>
    decltype(auto) guarded(Call&& call) {
        require_alive();
        const HeldSignal guard(SIGPIPE);  // Gloo writes to sockets without handling it
        try {
            return call();
        } catch (const std::exception& error) {
            fail(one_line(error));
        }
    }
    /// Closes the mesh and throws, with the reason of the first call of this or `close`.
    [[noreturn]] void fail(const std::string& reason);
    /// Closes all connections, which makes all waiting calls on both sides fail. May be called from any thread.
    void close(const std::string& reason) noexcept;
    bool closed() const { return closed_; }
    /// Why it was closed; empty if it is open.
    std::string reason() const;
    void require_alive() const;

private:
    class Connections;
    class Device;
    class Setup;
    static std::string one_line(const std::exception& error);

    GlooWatch& watch_;
    std::shared_ptr<gloo::rendezvous::Context> context_;
    std::shared_ptr<Connections> connections_;
    std::atomic<bool> closed_{false};
    mutable std::mutex mutex_;
    std::string reason_;  ///< set when closed_ is
};

}  // namespace lockstep
