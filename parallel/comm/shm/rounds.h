// Data movement of collectives: each rank puts a piece into its slot, the others read the data that they need from
// there.
#pragma once

#include <functional>

#include "lockstep/parallel/comm/shm/group.h"

namespace lockstep::shm {

/// The rounds of one collective call. All ranks go through the same number of them.
class Rounds {
public:
    /// `next`: the number of the group's next round, which is incremented.
    Rounds(Group& group, std::uint64_t& next, Deadline deadline, const std::function<void()>& meanwhile)
        : group_(group), next_(next), deadline_(deadline), meanwhile_(meanwhile) {
        group_.begin_call();
    }

    /// Writes the next round by put(own slot); returns its number.
    template <class Put>
    std::uint64_t give(Put put) {
        const std::uint64_t round = next_++;
        wait_until_free(round);
        put(group_.slot(group_.rank(), round));
        group_.advance(Counter::written, round + 1);
        return round;
    }
    /// This rank no longer needs the rounds before `round`.
    void took_before(std::uint64_t round) { group_.advance(Counter::taken, round); }

    /// Runs `count` rounds. If `puts`, put(k, own slot) is called for round k; if `takes`, take(k, its number for
    /// `from`). A rank puts one round before it takes the previous one, so that it rarely waits.
    template <class Put, class Take>
    void run(std::uint64_t count, bool puts, bool takes, Put put, Take take) {
        const std::uint64_t begin = next_;
        if (!takes) took_before(begin + count);
        for (std::uint64_t k = 0; k < count + 1; ++k) {
            if (puts && k < count) give([&](std::byte* slot) { put(k, slot); });
            if (takes && k > 0) {
                take(k - 1, begin + k - 1);
                took_before(begin + k);
            }
        }
        next_ = begin + count;
        if (!puts) own()[Counter::written].store(next_, std::memory_order_release);  // no rank waits for it
    }

    /// Data that `peer` has put in a round; waits for it.
    const std::byte* from(int peer, std::uint64_t round) const {
        group_.wait(peer, Counter::written, round + 1, deadline_, meanwhile_);
        return group_.slot(peer, round);
    }

    /// The maximum of the ranks' numbers.
    std::uint64_t greatest(std::uint64_t number);

private:
    Header::Progress& own() const { return group_.progress(group_.rank()); }
    /// Waits until all ranks have taken the previous content of the slot of `round`.
    void wait_until_free(std::uint64_t round) const {
        if (round < slots) return;
        for (int peer = 0; peer < group_.size(); ++peer)
            group_.wait(peer, Counter::taken, round + 1 - slots, deadline_, meanwhile_);
    }

    Group& group_;
    std::uint64_t& next_;
    Deadline deadline_;
    const std::function<void()>& meanwhile_;
};

}  // namespace lockstep::shm
