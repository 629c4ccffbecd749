// Where processes of one user, and nobody else, get the key of a store that was given no token: a local socket in the
// name of the store's port, on which the kernel tells whose the other side is. What TCP cannot tell, on loopback
// neither.
#pragma once

#include <string>

#include "lockstep/parallel/comm/sockets.h"

namespace lockstep {

/// The server's side.
class KeyDesk {
public:
    /// Makes up a key. Throws CommunicationError when there is a desk for that port, whoever's.
    explicit KeyDesk(int port);
    const std::string& key() const { return key_; }
    /// For poll: readable while somebody waits to be served.
    int descriptor() const { return listener_.get(); }
    /// Gives the key to those who wait and belong to this process's user, sends the others away, and keeps nobody.
    /// Returns 0, or the error that keeps it from taking up who waits.
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

/// Asks the desk of the store on `port` of this machine. Throws CommunicationError when it does not answer in time:
/// there may be many who ask.
DeskAnswer ask_desk(int port, Deadline deadline);

}  // namespace lockstep
