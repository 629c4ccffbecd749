// Messages between ranks of several hosts: through shared memory on this host, by Gloo to others. Also the end of both:
// a failure on one level, or on one host, ends the group on all.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/parallel/comm/group/host_identity.h"
#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep {

/// `end` and `failure` may be called from any thread; the rest from one at a time. Everything throws TransportError.
class HostMessages : public std::enable_shared_from_this<HostMessages> {
public:
    /// `info.hosts` has the host of each rank.
    HostMessages(const GroupInfo& info, const HostLayout& layout);

    std::unique_ptr<Message> send(const void* data, std::size_t bytes, int to, std::uint32_t tag);
    std::unique_ptr<Message> receive(void* data, std::size_t bytes, int from, std::uint32_t tag);
    int announced(std::uint32_t tag);

    /// Makes a call of the transport between the ranks of this host, numbered by HostLayout::place_of. Does nothing if
    /// this rank is the only one on its host.
    template <class Call>
    void inside(Call&& call) {
        guarded([&] {
            if (inside_) call(*inside_);
        });
    }
    void set_meanwhile(const std::function<void()>& function);

    /// Ends the group on all ranks and throws the reason that ended it first.
    [[noreturn]] void fail(const std::string& reason);
    void end(const std::string& reason) noexcept;
    /// As Transport::failure: of this rank's host, of connections to others, and failures that others have reported.
    std::string failure() const;
    /// Existing messages throw from now on.
    void close();

private:
    class Sending;
    class Receiving;

    template <class Call>
    decltype(auto) guarded(Call&& call) {
        require_alive();
        try {
            return call();
        } catch (const TransportError& error) {
            fail(error.what());
        }
    }
    void require_alive() const;
    bool here(int rank) const { return inside_ && layout_.host_of(rank) == layout_.host_of(rank_); }
    int rank_inside(int position) const {
        return layout_.ranks_on(layout_.host_of(rank_))[static_cast<std::size_t>(position)];
    }
    /// As Transport::announced, on both levels.
    int sender(std::uint32_t tag);
    /// Posts the receives whose sender is known by now.
    void post_waiting();
    std::string first_reason(const std::string& reason) noexcept;

    const int rank_;
    const HostLayout layout_;
    std::unique_ptr<Transport> inside_;   ///< null if this rank is the only one on its host
    std::unique_ptr<Transport> between_;  ///< all ranks, numbered as in the group
    /// In the order of the calls: receives from any rank whose sender is still unknown, and later receives with the
    /// same tag.
    std::list<Receiving*> waiting_;

    std::unique_ptr<Store> store_;  ///< contains the first reason
    mutable std::mutex mutex_;      ///< not held while a transport is aborted, which may wait for its threads
    std::condition_variable aborted_;
    int aborting_ = 0;    ///< number of threads that abort the transports
    std::string reason_;  ///< valid when ended_
    std::atomic<bool> ended_{false};
};

}  // namespace lockstep
