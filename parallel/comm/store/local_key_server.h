// Passes the key of a store without a token only to processes of the same user: a local socket named after the store's
// port, on which the kernel tells each side the other's user. TCP does not provide this, not even on loopback.
#pragma once

#include <string>

#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

/// The server's side.
class LocalKeyServer {
public:
    /// Creates a key. Throws CommunicationError if a key server for that port exists, of any user.
    explicit LocalKeyServer(int port);
    const std::string& key() const { return key_; }
    /// For poll: readable while a client waits to be served.
    int descriptor() const { return listener_.get(); }
    /// Accepts waiting connections, sends the key to those of this process's user and closes all of them. Returns 0, or
    /// the error for which it could not accept.
    int serve() const;

private:
    Descriptor listener_;
    std::string key_;
};

/// Answer of the key server to this process.
struct KeyReply {
    std::string key;      ///< empty if there is no key server, or it refuses this process
    std::string refusal;  ///< the reason of the refusal
};

/// Asks the key server of the store on `port` of this machine. Throws CommunicationError if it does not answer in time.
KeyReply fetch_key(int port, Deadline deadline);

}  // namespace lockstep
