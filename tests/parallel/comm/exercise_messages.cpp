#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "lockstep/tests/parallel/comm/exercise_data.h"

namespace lockstep::test {

namespace {

/// The bytes of a message depend on a number, the sender and the receiver, so that the receiver knows the expected
/// bytes.
class Messages {
public:
    Messages(Transport& transport, int rank, int size, Failures& failures)
        : transport_(transport), rank_(rank), size_(size), failures_(failures) {}

    void run() {
        std::vector<Pending> list;
        tags_out_of_order(list);
        same_tag(list);
        both_directions(list);
        from_anybody();
        anybody_in_turn(list);
        announced_ones();
        during_collectives(list);
    }

private:
    struct Pending {
        std::unique_ptr<Message> message;
        Target target;
        Bytes expected;
        int from;  ///< -1: a send
        std::string name;
        bool done = false;
    };

    void post_send(std::vector<Pending>& list, std::uint64_t call, int to, std::size_t bytes, std::uint32_t tag) {
        list.push_back({nullptr, Target(sent_bytes(call, rank_, to, bytes)), {}, -1, "send", false});
        list.back().message = transport_.send(list.back().target.data(), bytes, to, tag);
    }
    void post_receive(std::vector<Pending>& list, std::uint64_t call, int from, std::size_t bytes, std::uint32_t tag) {
        list.push_back({nullptr, Target(bytes), sent_bytes(call, from, rank_, bytes), from,
                        "message of " + std::to_string(bytes) + " from rank " + std::to_string(from) + " with tag " +
                            std::to_string(tag),
                        false});
        list.back().message = transport_.receive(list.back().target.data(), bytes, from, tag);
    }
    void post_receive_from_anybody(std::vector<Pending>& list, std::uint64_t call, int from, std::size_t bytes,
                                   std::uint32_t tag) {
        list.push_back(
            {nullptr, Target(bytes), sent_bytes(call, from, rank_, bytes), from, "message from any source", false});
        list.back().message = transport_.receive(list.back().target.data(), bytes, Transport::any_source, tag);
    }
    static bool advance(std::vector<Pending>& list) {
        bool all = true;
        for (Pending& one : list) {
            one.done = one.done || one.message->advance();
            all = all && one.done;
        }
        return all;
    }
    void finish(std::vector<Pending>& list) {
        const Deadline deadline = soon();
        while (!advance(list)) {
            if (RunClock::now() > deadline) throw TransportError("messages are incomplete after a minute");
            std::this_thread::yield();
        }
        for (Pending& one : list) {
            if (one.from < 0) continue;
            failures_.check(one.name, one.target, one.expected);
            failures_.require(one.message->source() == one.from, one.name + ": wrong source");
        }
        list.clear();
    }

    template <class Call>
    void peers(Call call) const {
        for (int step = 1; step < size_; ++step) call((rank_ + step) % size_);
    }

    /// Sent in order of rising tags, received in order of falling ones; sizes from 0 to some thousands.
    void tags_out_of_order(std::vector<Pending>& list) {
        constexpr std::uint32_t tags = 12;
        const auto bytes = [](std::uint32_t tag) { return std::size_t{tag} * tag * tag * 3; };
        peers([&](int to) {
            for (std::uint32_t tag = 0; tag < tags; ++tag) post_send(list, tag, to, bytes(tag), tag * 0x10000001u);
        });
        peers([&](int from) {
            for (std::uint32_t tag = tags; tag-- > 0;) post_receive(list, tag, from, bytes(tag), tag * 0x10000001u);
        });
        finish(list);
    }

    void same_tag(std::vector<Pending>& list) {
        peers([&](int from) {
            for (std::uint64_t i = 0; i < 20; ++i) post_receive(list, i, from, 100 * i, 7);
        });
        advance(list);
        transport_.barrier(soon());
        peers([&](int to) {
            for (std::uint64_t i = 0; i < 20; ++i) post_send(list, i, to, 100 * i, 7);
        });
        finish(list);
    }

    void both_directions(std::vector<Pending>& list) {
        peers([&](int to) {
            for (std::uint32_t i = 0; i < 3; ++i) post_send(list, i, to, 2 * large + i, i / 2);
        });
        advance(list);
        peers([&](int from) {
            for (const std::uint32_t i : {2u, 0u, 1u}) post_receive(list, i, from, 2 * large + i, i / 2);
        });
        finish(list);
    }

    void from_anybody() {
        for (const std::size_t bytes : {std::size_t{1}, std::size_t{4000}, large}) {
            std::vector<Pending> list;
            for (int i = 1; i < size_; ++i) post_receive(list, 0, Transport::any_source, bytes, 3);
            peers([&](int to) { post_send(list, bytes, to, bytes, 3); });
            const Deadline deadline = soon();
            while (!advance(list) && RunClock::now() < deadline) std::this_thread::yield();
            std::vector<int> seen;
            for (int i = 0; i + 1 < size_; ++i) {
                Pending& one = list[static_cast<std::size_t>(i)];
                if (!one.done) throw TransportError("messages from any source are incomplete after a minute");
                seen.push_back(one.message->source());
                failures_.check("message from any source", one.target, sent_bytes(bytes, seen.back(), rank_, bytes));
            }
            seen.push_back(rank_);
            std::sort(seen.begin(), seen.end());
            for (int r = 0; r < size_; ++r)
                failures_.require(seen[static_cast<std::size_t>(r)] == r,
                                  "messages from any source: a source is missing");
            transport_.barrier(soon());
        }
    }

    /// Receives from any rank and from one rank get the messages in the order of the calls.
    void anybody_in_turn(std::vector<Pending>& list) {
        constexpr std::uint64_t count = 5;
        const auto from_last = [&](int call) {
            if (rank_ == 0)
                for (std::uint64_t i = 0; i < count; ++i)
                    call % 2 == static_cast<int>(i % 2) ? post_receive(list, i, size_ - 1, 3000 * i, 12)
                                                        : post_receive_from_anybody(list, i, size_ - 1, 3000 * i, 12);
        };
        for (const int call : {0, 1}) {
            from_last(call);
            advance(list);
            transport_.barrier(soon());
            if (rank_ == size_ - 1)
                for (std::uint64_t i = 0; i < count; ++i) post_send(list, i, 0, 3000 * i, 12);
            finish(list);
        }
    }

    /// Messages that arrive without a receive are announced, one after the other.
    void announced_ones() {
        std::vector<Pending> sent;
        peers([&](int to) { post_send(sent, 2, to, large, 13); });
        const Deadline deadline = soon();
        for (int i = 1; i < size_; ++i) {
            int from = Transport::any_source;
            while (from < 0) {
                from = transport_.announced(13);
                advance(sent);
                if (RunClock::now() > deadline) throw TransportError("no message was announced within a minute");
                std::this_thread::yield();
            }
            std::vector<Pending> list;
            post_receive(list, 2, from, large, 13);
            while (!advance(list)) advance(sent);
            finish(list);
        }
        finish(sent);
        transport_.barrier(soon());
        failures_.require(transport_.announced(13) == Transport::any_source,
                          "a message that was never sent is announced");
        transport_.barrier(soon());
    }

    /// Even ranks wait in a collective while odd ones wait for a message from them: `meanwhile` must make progress on
    /// it. Also, messages must not be mistaken for a part of a collective.
    void during_collectives(std::vector<Pending>& list) {
        const int other = rank_ ^ 1;
        if (other < size_) {
            post_send(list, 1, other, 2 * large, 9);
            post_receive(list, 1, other, 2 * large, 9);
        }
        transport_.meanwhile = [&] { advance(list); };
        if (rank_ % 2 == 1) finish(list);
        transport_.barrier(soon());
        transport_.meanwhile = nullptr;
        finish(list);

        peers([&](int to) { post_send(list, 5, to, 5000, 1); });
        advance(list);
        Target data(elements<float>(ReduceOp::sum, rank_, 0, 5000));
        transport_.all_reduce(data.data(), 5000, DType::f32, ReduceOp::sum, soon());
        failures_.check("all_reduce during messages", data, reduced<float>(ReduceOp::sum, size_, 0, 5000));
        peers([&](int from) { post_receive(list, 5, from, 5000, 1); });
        finish(list);
    }

    Transport& transport_;
    int rank_, size_;
    Failures& failures_;
};

}  // namespace

void exercise_messages(Transport& transport, int rank, int size, Failures& failures) {
    Messages(transport, rank, size, failures).run();
}

}  // namespace lockstep::test
