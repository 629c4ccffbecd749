// Hands the key of a store without a token to processes of the same user, and to nobody else: a local socket named
// after the store's port, on which the kernel tells each side the other's user. TCP does not tell that, not even on
// loopback.
#pragma once

#include <string>

#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

/// The server's side.
class KeyDesk {
public:
    /// Makes up a key. Throws CommunicationError when there is a desk for that port, whoever's.
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

/// What the desk says to this process.
struct DeskAnswer {
    std::string key;      ///< empty when there is no desk, or it is not for this process
    std::string refusal;  ///< why it is not
};

/// Asks the desk of the store on `port` of this machine. Throws CommunicationError when it does not answer in time.
DeskAnswer ask_desk(int port, Deadline deadline);

}  // namespace lockstep
