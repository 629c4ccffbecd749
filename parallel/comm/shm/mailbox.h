// Messages between two ranks, through a ring in the sender's memory. Messages that arrive before their receive are
// buffered.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <vector>

#include "lockstep/parallel/comm/shm/group.h"

namespace lockstep::shm {

/// Used by one thread at a time, like Transport::send, receive and announced.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
public:
    explicit Mailbox(std::shared_ptr<Group> group);

    std::unique_ptr<Message> send(const void* data, std::size_t bytes, int to, std::uint32_t tag);
    std::unique_ptr<Message> receive(void* data, std::size_t bytes, int from, std::uint32_t tag);
    int announced(std::uint32_t tag);
    /// Existing messages throw from now on.
    void close() { closed_ = true; }

private:
    struct Sending;
    struct Receiving;
    struct Incoming;
    class SentMessage;
    class ReceivedMessage;

    void require_open() const;
    void progress();
    void push(int to);
    void drain(int from);
    void arrives(std::shared_ptr<Incoming> message);
    void pair(Incoming& message, const std::shared_ptr<Receiving>& receiver);
    void forget(Incoming& message);
    void give_up(const std::shared_ptr<Receiving>& receiver);
    /// Whether `peer` has left; any_source: whether all have.
    bool gone(int peer) const;
    /// Throws if a message to or from `peer`, which may have left, cannot be completed.
    void require_possible(int peer, bool gone) const;

    std::shared_ptr<Group> group_;
    bool closed_ = false;
    std::uint64_t posted_count_ = 0;
    std::vector<std::deque<std::shared_ptr<Sending>>> outgoing_;  ///< by receiver
    std::vector<std::shared_ptr<Incoming>> current_;              ///< by sender: partially arrived
    std::list<std::shared_ptr<Incoming>> unexpected_;             ///< in the order in which they began
    std::list<std::shared_ptr<Receiving>> posted_;                ///< in the order of the calls, not matched with a
                                                                  ///< message yet
};

}  // namespace lockstep::shm
