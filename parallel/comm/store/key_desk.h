// Passes the key of a store without a token only to processes of the same user: a local socket named after the store's
// port, on which the kernel tells each side the other's user. TCP does not provide this, not even on loopback.
#pragma once

#include <string>

#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

/// The server's side.
class KeyDesk {
public:
    /// Creates a key. Throws CommunicationError if a desk for that port exists, of any user.
    explicit KeyDesk(int port);
    const std::string& key() const { return key_; }
    /// For poll: readable while somebody waits to be served.
    int descriptor() const { return listener_.get(); }
    /// Accepts waiting connections, gives the key to those of this process's user and closes all of them. Returns 0, or
    /// the error for which it could not accept.
    int serve() const;

private:
    Descriptor listener_;
    std::string key_;
};

/// Answer of the desk to this process.
struct DeskAnswer {
    std::string key;      ///< empty when there is no desk, or it is not for this process
    std::string refusal;  ///< why it is not
};

/// Asks the desk of the store on `port` of this machine. Throws CommunicationError when it does not answer in time.
DeskAnswer ask_desk(int port, Deadline deadline);

}  // namespace lockstep
