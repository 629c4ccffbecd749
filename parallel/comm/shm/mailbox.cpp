#include "lockstep/parallel/comm/shm/mailbox.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/parallel/comm/shm/parts.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep::shm {

namespace {

enum class Kind : std::uint32_t { first, more, given_up };

/// A message is one or several frames, without frames of other messages in between.
struct Frame {
    std::uint64_t total = 0;   ///< bytes of the message
    std::uint64_t length = 0;  ///< bytes that follow, padded to a multiple of the frame's size
    std::uint32_t tag = 0;
    Kind kind = Kind::first;
    std::uint64_t unused = 0;
};
static_assert(ring_bytes % sizeof(Frame) == 0);

/// Short, so that the receiver copies one while the sender writes the next.
constexpr std::size_t longest_part = ring_bytes / 4 - sizeof(Frame);

std::uint64_t padded(std::uint64_t bytes) { return round_up(bytes, sizeof(Frame)); }

void put(Ring& ring, std::uint64_t at, const void* from, std::size_t bytes) {
    const std::size_t begin = at % ring_bytes, first = std::min(bytes, ring_bytes - begin);
    copy_bytes(ring.bytes.data() + begin, from, first);
    copy_bytes(ring.bytes.data(), static_cast<const std::byte*>(from) + first, bytes - first);
}

void get(const Ring& ring, std::uint64_t at, void* to, std::size_t bytes) {
    const std::size_t begin = at % ring_bytes, first = std::min(bytes, ring_bytes - begin);
    copy_bytes(to, ring.bytes.data() + begin, first);
    copy_bytes(static_cast<std::byte*>(to) + first, ring.bytes.data(), bytes - first);
}

}  // namespace

struct Mailbox::Sending {
    const std::byte* data;
    std::size_t bytes;
    std::uint32_t tag;
    std::size_t sent = 0;
    bool begun = false, done = false, given_up = false;
};

struct Mailbox::Receiving {
    std::byte* data;
    std::size_t bytes;
    int from;
    std::uint32_t tag;
    std::uint64_t number;  ///< in the order of the calls
    Incoming* message = nullptr;
    int source = Transport::any_source;
    bool done = false;
};

struct Mailbox::Incoming {
    int from;
    std::uint32_t tag;
    std::size_t total;
    std::size_t arrived = 0;
    std::shared_ptr<Receiving> receiver;     ///< the bytes are stored in its memory,
    std::unique_ptr<std::byte[]> kept = {};  ///< or here; if both are null, they are dropped
};

class Mailbox::SentMessage final : public Message {
public:
    SentMessage(std::shared_ptr<Mailbox> box, std::shared_ptr<Sending> sending, int to)
        : box_(std::move(box)), sending_(std::move(sending)), to_(to) {}
    ~SentMessage() override { sending_->given_up = true; }
    SentMessage(const SentMessage&) = delete;
    SentMessage& operator=(const SentMessage&) = delete;
    bool advance() override {
        box_->require_open();
        if (sending_->done) return true;
        box_->progress();
        if (!sending_->done) box_->require_possible(to_, box_->gone(to_));
        return sending_->done;
    }
    int source() const override { return box_->group_->rank(); }

private:
    std::shared_ptr<Mailbox> box_;
    std::shared_ptr<Sending> sending_;
    int to_;
};

class Mailbox::ReceivedMessage final : public Message {
public:
    ReceivedMessage(std::shared_ptr<Mailbox> box, std::shared_ptr<Receiving> receiving)
        : box_(std::move(box)), receiving_(std::move(receiving)) {}
    ~ReceivedMessage() override { box_->give_up(receiving_); }
    ReceivedMessage(const ReceivedMessage&) = delete;
    ReceivedMessage& operator=(const ReceivedMessage&) = delete;
    bool advance() override {
        box_->require_open();
        if (receiving_->done) return true;
        const bool last = box_->gone(receiving_->from);  // checked first: messages sent before leaving count
        box_->progress();
        if (!receiving_->done) box_->require_possible(receiving_->from, last);
        return receiving_->done;
    }
    int source() const override { return receiving_->source; }

private:
    std::shared_ptr<Mailbox> box_;
    std::shared_ptr<Receiving> receiving_;
};

Mailbox::Mailbox(std::shared_ptr<Group> group)
    : group_(std::move(group)),
      outgoing_(static_cast<std::size_t>(group_->size())),
      current_(static_cast<std::size_t>(group_->size())) {}

std::unique_ptr<Message> Mailbox::send(const void* data, std::size_t bytes, int to, std::uint32_t tag) {
    require_open();
    auto sending = std::make_shared<Sending>(Sending{static_cast<const std::byte*>(data), bytes, tag});
    outgoing_[static_cast<std::size_t>(to)].push_back(sending);
    push(to);
    return std::make_unique<SentMessage>(shared_from_this(), std::move(sending), to);
}

std::unique_ptr<Message> Mailbox::receive(void* data, std::size_t bytes, int from, std::uint32_t tag) {
    require_open();
    auto receiver =
        std::make_shared<Receiving>(Receiving{static_cast<std::byte*>(data), bytes, from, tag, posted_count_++});
    const auto message = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const auto& candidate) {
        return candidate->tag == tag && (from == Transport::any_source || candidate->from == from);
    });
    if (message == unexpected_.end()) {
        posted_.push_back(receiver);
    } else {
        pair(**message, receiver);
        unexpected_.erase(message);
    }
    return std::make_unique<ReceivedMessage>(shared_from_this(), std::move(receiver));
}

int Mailbox::announced(std::uint32_t tag) {
    require_open();
    const bool last = gone(Transport::any_source);  // checked first: messages sent before leaving count
    progress();
    const auto message = std::find_if(unexpected_.begin(), unexpected_.end(),
                                      [&](const auto& candidate) { return candidate->tag == tag; });
    if (message != unexpected_.end()) return (*message)->from;
    require_possible(Transport::any_source, false);
    return last ? Transport::all_left : Transport::any_source;
}

void Mailbox::require_open() const {
    if (closed_) throw TransportError("the group has been destroyed");
    group_->require_alive();
}

bool Mailbox::gone(int peer) const {
    if (peer != Transport::any_source) return group_->has_left(peer);
    for (int other = 0; other < group_->size(); ++other)
        if (other != group_->rank() && !group_->has_left(other)) return false;
    return true;
}

void Mailbox::require_possible(int peer, bool gone) const {
    const std::string dead = group_->dead_ranks();
    if (!dead.empty()) group_->fail(dead);
    if (!gone) return;
    group_->fail(peer == Transport::any_source ? "all other ranks have left the group"
                                               : fmt::format("rank {} has left the group", group_->called(peer)));
}

void Mailbox::progress() {
    for (int peer = 0; peer < group_->size(); ++peer) {
        if (peer == group_->rank()) continue;
        push(peer);
        drain(peer);
    }
}

void Mailbox::push(int to) {
    auto& queue = outgoing_[static_cast<std::size_t>(to)];
    if (queue.empty()) return;
    Ring& ring = group_->ring(group_->rank(), to);
    std::uint64_t head = ring.head.load(std::memory_order_relaxed);
    while (!queue.empty()) {
        Sending& message = *queue.front();
        if (message.given_up && !message.begun) {
            queue.pop_front();
            continue;
        }
        Frame frame{.total = message.bytes, .tag = message.tag, .kind = message.begun ? Kind::more : Kind::first};
        frame.length = std::min(message.bytes - message.sent, longest_part);
        if (message.given_up) frame.kind = Kind::given_up, frame.length = 0;
        const std::uint64_t needed = sizeof frame + padded(frame.length);
        if (ring_bytes - (head - ring.tail.load(std::memory_order_acquire)) < needed) return;
        put(ring, head, &frame, sizeof frame);
        put(ring, head + sizeof frame, message.data + message.sent, frame.length);
        head += needed;
        ring.head.store(head, std::memory_order_seq_cst);
        group_->nudge(to);
        message.begun = true;
        message.sent += frame.length;
        message.done = message.sent == message.bytes;
        if (message.done || frame.kind == Kind::given_up) queue.pop_front();
    }
}

void Mailbox::drain(int from) {
    Ring& ring = group_->ring(from, group_->rank());
    std::uint64_t tail = ring.tail.load(std::memory_order_relaxed);
    auto& current = current_[static_cast<std::size_t>(from)];
    while (tail != ring.head.load(std::memory_order_acquire)) {
        Frame frame;
        get(ring, tail, &frame, sizeof frame);
        if (frame.kind == Kind::first) {
            current = std::make_shared<Incoming>(Incoming{from, frame.tag, frame.total, 0, nullptr});
            arrives(current);
        }
        if (frame.kind == Kind::given_up) {
            forget(*current);
        } else {
            std::byte* to = current->receiver ? current->receiver->data : current->kept.get();
            if (to) get(ring, tail + sizeof frame, to + current->arrived, frame.length);
            current->arrived += frame.length;
        }
        tail += sizeof frame + padded(frame.length);
        ring.tail.store(tail, std::memory_order_seq_cst);
        group_->nudge(from);
        if (current->arrived != current->total && frame.kind != Kind::given_up) continue;
        if (current->receiver && frame.kind != Kind::given_up) current->receiver->done = true;
        current.reset();
    }
}

void Mailbox::arrives(std::shared_ptr<Incoming> message) {
    const auto receiver = std::find_if(posted_.begin(), posted_.end(), [&](const auto& candidate) {
        return candidate->tag == message->tag &&
               (candidate->from == Transport::any_source || candidate->from == message->from);
    });
    if (receiver != posted_.end()) {
        pair(*message, *receiver);
        posted_.erase(receiver);
    } else {
        message->kept = std::make_unique_for_overwrite<std::byte[]>(message->total);
        unexpected_.push_back(std::move(message));
    }
}

void Mailbox::pair(Incoming& message, const std::shared_ptr<Receiving>& receiver) {
    if (message.total != receiver->bytes)
        group_->fail(fmt::format("rank {} sent {} bytes with tag {}; expected {}", group_->called(message.from),
                                 message.total, message.tag, receiver->bytes));
    copy_bytes(receiver->data, message.kept.get(), message.arrived);
    message.kept.reset();
    receiver->source = message.from;
    receiver->done = message.arrived == message.total;
    receiver->message = &message;
    message.receiver = receiver;
}

/// The sender has cancelled it: treated as if it had never been sent.
void Mailbox::forget(Incoming& message) {
    unexpected_.remove_if([&](const auto& candidate) { return candidate.get() == &message; });
    if (!message.receiver) return;
    message.receiver->message = nullptr;
    const auto later = std::find_if(posted_.begin(), posted_.end(), [&](const auto& candidate) {
        return candidate->number > message.receiver->number;
    });
    posted_.insert(later, std::move(message.receiver));
}

/// The part that has already arrived is lost with it.
void Mailbox::give_up(const std::shared_ptr<Receiving>& receiver) {
    if (receiver->done) return;
    if (receiver->message)
        receiver->message->receiver.reset();
    else
        posted_.remove(receiver);
}

}  // namespace lockstep::shm
