#include "lockstep/parallel/comm/gloo/gloo_messages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "lockstep/parallel/comm/store/deadline.h"

namespace lockstep {

namespace {

// The upper 8 bits of a slot; those of Gloo's collectives are 1 to 8.
constexpr std::uint64_t frame_slot = std::uint64_t{0x41} << 56;
constexpr std::uint64_t leave_slot = std::uint64_t{0x42} << 56;
std::uint64_t body_slot(std::uint64_t sequence) { return (std::uint64_t{0x43} << 56) | sequence; }

constexpr std::size_t open_frames = 4;
constexpr std::chrono::seconds patience{1};  ///< limit of waits in destructors

}  // namespace

class GlooMessages::Sending final : public Message {
public:
    Sending(GlooMessages& messages, const void* data, std::size_t bytes, int to, Label label)
        : messages_(messages.shared_from_this()), to_(to), frame_(messages.make_frame()) {
        Header header{bytes, messages.peer(to).sent++, label};
        std::memcpy(frame_.memory->data(), &header, sizeof header);
        const std::size_t size = inside(header);
        if (size > 0) std::memcpy(frame_.memory->data() + sizeof header, data, size);
        frame_.buffer->send(to, frame_slot, 0, sizeof header + size);
        if (bytes == size) return;
        body_ = messages.mesh_.buffer(const_cast<void*>(data), bytes);
        body_->send(to, body_slot(header.sequence), 0, bytes);
    }
    ~Sending() override {
        if (done_ || sent() || messages_->mesh_.closed()) return;
        if (body_)
            messages_->mesh_.close(fmt::format("a message to rank {} was aborted before it was sent", to_));
        else
            messages_->left_behind_.push_back(std::move(frame_));
    }

    bool advance() override {
        if (done_) return true;
        return messages_->mesh_.guarded([&] {
            if (!sent() && messages_->lost(to_) && !sent()) messages_->require(to_);
            return done_;
        });
    }
    int source() const override { return messages_->rank_; }

private:
    bool sent() { return done_ = frame_.buffer->sent() && (!body_ || body_->sent()); }

    std::shared_ptr<GlooMessages> messages_;
    int to_;
    Frame frame_;
    std::unique_ptr<GlooBuffer> body_;
    bool done_ = false;
};

class GlooMessages::Receiving final : public Message {
public:
    Receiving(GlooMessages& messages, void* data, std::size_t bytes, int from, Label label)
        : messages_(messages.shared_from_this()), data_(data), bytes_(bytes), from_(from), label_(label) {
        auto& early = messages.unexpected_;
        const auto found =
            std::find_if(early.begin(), early.end(), [&](const Arrived& one) { return takes(one.source, one.header); });
        if (found == early.end()) {
            waiting_entry_ = messages.waiting_.insert(messages.waiting_.end(), this);
        } else {
            accept(found->source, found->header, found->inside.data());
            early.erase(found);
        }
    }
    ~Receiving() override {
        if (!source_) {
            if (waiting_entry_) messages_->waiting_.erase(*waiting_entry_);
        } else if (body_ && !received()) {  // the announced bytes are in transit and will be written
            const Deadline deadline = RunClock::now() + patience;
            for (Backoff backoff(0); !received() && !messages_->mesh_.closed() && !body_->failed(); backoff.pause())
                if (RunClock::now() > deadline)
                    messages_->mesh_.close(
                        fmt::format("a message from rank {} was aborted while it was received", *source_));
        }
    }

    bool takes(int from, const Header& header) const {
        return (from_ == Transport::any_source || from_ == from) && label_ == header.label;
    }
    /// Takes an announced message. Throws if its size differs.
    void accept(int from, const Header& header, const std::byte* inside_frame) {
        if (header.bytes != bytes_)
            throw TransportError(fmt::format("rank {} sent {} bytes; expected {}", from, header.bytes, bytes_));
        if (inside(header) > 0) std::memcpy(data_, inside_frame, bytes_);
        if (inside(header) < bytes_) {
            body_ = messages_->mesh_.buffer(data_, bytes_);
            body_->recv(from, body_slot(header.sequence), 0, bytes_);
        }
        if (!source_ && waiting_entry_) messages_->waiting_.erase(*waiting_entry_);
        source_ = from;
    }

    bool advance() override {
        if (done_) return true;
        return messages_->mesh_.guarded([&] {
            messages_->poll();
            if (received()) return true;
            const int awaited = source_.value_or(from_);
            if (!messages_->lost(awaited)) return false;
            messages_->poll();  // frames received before the connection closed
            if (!received() && awaited == source_.value_or(from_)) messages_->require(awaited);
            return done_;
        });
    }
    int source() const override { return source_.value_or(Transport::any_source); }

private:
    bool received() { return done_ = done_ || (source_ && (!body_ || body_->received())); }

    std::shared_ptr<GlooMessages> messages_;
    void* data_;
    std::size_t bytes_;
    int from_;
    Label label_;
    std::optional<std::list<Receiving*>::iterator> waiting_entry_;
    std::optional<int> source_;
    std::unique_ptr<GlooBuffer> body_;
    bool done_ = false;
};

GlooMessages::GlooMessages(const GroupInfo& info, GlooWatch& watch)
    : rank_(info.rank), mesh_(info, watch), peers_(static_cast<std::size_t>(info.size)) {
    mesh_.guarded([&] {
        for (int r = 0; r < info.size; ++r) {
            if (r == rank_) continue;
            Peer& one = peer(r);
            try {
                one.leave_given = mesh_.buffer(&one.nothing, 1);
                one.leave_given->send(r, leave_slot, 0, 1);
                for (std::size_t i = 0; i < open_frames; ++i) {
                    one.open.push_back(make_frame());
                    one.open.back().buffer->recv(r, frame_slot, 0, frame_bytes);
                }
            } catch (const std::exception&) {
                throw TransportError(fmt::format("the connection to rank {} is closed", r));
            }
        }
    });
}

GlooMessages::Frame GlooMessages::make_frame() const {
    auto memory = std::make_unique<FrameMemory>();
    auto buffer = mesh_.buffer(memory->data(), frame_bytes);
    return {std::move(memory), std::move(buffer)};
}

std::unique_ptr<Message> GlooMessages::send(const void* data, std::size_t bytes, int to, Label label) {
    return mesh_.guarded([&] {
        left_behind_.remove_if([](const Frame& frame) { return frame.buffer->sent(); });
        require(to);
        return std::make_unique<Sending>(*this, data, bytes, to, label);
    });
}

std::unique_ptr<Message> GlooMessages::receive(void* data, std::size_t bytes, int from, Label label) {
    return mesh_.guarded([&] {
        poll();
        return std::make_unique<Receiving>(*this, data, bytes, from, label);
    });
}

int GlooMessages::announced(std::uint32_t tag) {
    return mesh_.guarded([&] {
        const bool last = lost(Transport::any_source);  // before the poll, which takes the last frames
        poll();
        const auto found = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Arrived& one) {
            return one.header.label == Label{tag, 0};
        });
        if (found != unexpected_.end()) return found->source;
        return last ? Transport::all_left : Transport::any_source;
    });
}

void GlooMessages::poll() {
    for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
        if (r == rank_) continue;
        Peer& one = peer(r);
        while (one.open[one.next].buffer->take_received()) {
            Frame& frame = one.open[one.next];
            one.next = (one.next + 1) % open_frames;
            arrived(r, *frame.memory);
            if (one.closed) continue;
            try {
                frame.buffer->recv(r, frame_slot, 0, frame_bytes);
            } catch (const std::exception&) {  // the end of this connection; frames of others remain to be taken
                one.closed = true;
            }
        }
    }
}

void GlooMessages::arrived(int source, const FrameMemory& frame) {
    Header header{};
    std::memcpy(&header, frame.data(), sizeof header);
    const std::byte* bytes = frame.data() + sizeof header;
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const Receiving* one) { return one->takes(source, header); });
    if (found != waiting_.end())
        (*found)->accept(source, header, bytes);
    else
        unexpected_.push_back({source, header, std::vector<std::byte>(bytes, bytes + inside(header))});
}

bool GlooMessages::lost(int rank) {
    if (rank == Transport::any_source) {
        for (int r = 0; r < static_cast<int>(peers_.size()); ++r)
            if (r != rank_ && !lost(r)) return false;
        return true;
    }
    Peer& one = peer(rank);
    return one.closed ||
           std::any_of(one.open.begin(), one.open.end(), [](Frame& frame) { return frame.buffer->failed(); });
}

void GlooMessages::require(int rank) {
    if (!lost(rank)) return;
    if (rank == Transport::any_source) throw TransportError("all other ranks have left");
    // All of them: `rank` may have closed its connections because another rank died.
    std::vector<int> others;
    for (int r = 0; r < static_cast<int>(peers_.size()); ++r)
        if (r != rank_ && r != rank && lost(r)) others.push_back(r);
    std::string also;
    if (others.size() == 1) also = fmt::format(", as is that to rank {}", others[0]);
    if (others.size() > 1) also = fmt::format(", as are those to ranks {}", fmt::join(others, ", "));
    throw TransportError(fmt::format("the connection to rank {} is closed{}", rank, also));
}

std::string GlooMessages::failure() {
    if (mesh_.closed()) return mesh_.reason();
    for (int r = 0; r < static_cast<int>(peers_.size()); ++r)
        if (r != rank_ && lost(r) && !peer(r).leave_given->sent())
            return fmt::format("the connection to rank {} is closed", r);
    return {};
}

void GlooMessages::take_leave(Deadline deadline) {
    mesh_.guarded([&] {
        for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
            if (r == rank_ || lost(r)) continue;
            Peer& one = peer(r);
            one.leave_taken = mesh_.buffer(&one.nothing, 1);
            one.leave_taken->recv(r, leave_slot, 0, 1);
        }
        for (Peer& one : peers_)
            for (Backoff backoff(0); one.leave_taken && !one.leave_taken->received() && !one.leave_taken->failed();
                 backoff.pause())
                if (RunClock::now() > deadline) return;
    });
}

}  // namespace lockstep
