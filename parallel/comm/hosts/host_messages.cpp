#include "lockstep/parallel/comm/hosts/host_messages.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

namespace {

/// The stopped rank may be the one that holds the store, so no call waits longer for its answer.
constexpr std::chrono::milliseconds answer_timeout(250), connect_timeout(2000);
constexpr const char* ended_key = "ended";

}  // namespace

class HostMessages::Sending final : public Message {
public:
    Sending(HostMessages& messages, std::unique_ptr<Message> message)
        : messages_(messages.shared_from_this()), message_(std::move(message)) {}
    bool advance() override {
        return done_ = done_ || messages_->guarded([&] { return message_->advance(); });
    }
    int source() const override { return messages_->rank_; }

private:
    std::shared_ptr<HostMessages> messages_;
    std::unique_ptr<Message> message_;
    bool done_ = false;
};

class HostMessages::Receiving final : public Message {
public:
    Receiving(HostMessages& messages, void* data, std::size_t bytes, int from, std::uint32_t tag)
        : tag_(tag), from_(from), messages_(messages.shared_from_this()), data_(data), bytes_(bytes) {}
    ~Receiving() override { messages_->waiting_.remove(this); }
    Receiving(const Receiving&) = delete;
    Receiving& operator=(const Receiving&) = delete;

    std::uint32_t tag() const { return tag_; }
    int from() const { return from_; }
    void post(int from) {
        from_ = from;
        const bool here = messages_->here(from);
        Transport& level = here ? *messages_->inside_ : *messages_->between_;
        message_ = level.receive(data_, bytes_, here ? messages_->layout_.position_of(from) : from, tag_);
    }
    bool advance() override {
        return done_ = done_ || messages_->guarded([&] {
            if (!message_) messages_->post_waiting();
            return message_ && message_->advance();
        });
    }
    int source() const override { return from_; }

private:
    std::uint32_t tag_;
    int from_;
    std::shared_ptr<HostMessages> messages_;
    void* data_;
    std::size_t bytes_;
    std::unique_ptr<Message> message_;
    bool done_ = false;
};

HostMessages::HostMessages(const GroupInfo& info, const HostLayout& layout)
    : rank_(info.rank), layout_(layout), store_(info.store->clone(answer_timeout, connect_timeout)) {
    const Deadline deadline = deadline_in(info.timeout);
    const int host = layout_.host_of(rank_);
    GroupInfo part = info;
    part.hosts.clear();
    part.names = layout_.ranks_on(host);
    part.rank = layout_.position_of(rank_);
    part.size = static_cast<int>(part.names.size());
    part.global_ranks.clear();
    part.store = std::make_shared<PrefixStore>(fmt::format("host{}/", host), info.store);
    if (part.size > 1) inside_ = shm_backend().make(part);
    GroupInfo all = info;
    all.hosts.clear();
    all.store = std::make_shared<PrefixStore>("between/", info.store);
    all.timeout = std::max(std::chrono::milliseconds(1), time_until(deadline));
    between_ = gloo_backend().make(all);
}

void HostMessages::set_meanwhile(const std::function<void()>& function) {
    if (inside_) inside_->meanwhile = function;
}

std::unique_ptr<Message> HostMessages::send(const void* data, std::size_t bytes, int to, std::uint32_t tag) {
    return guarded([&] {
        return std::make_unique<Sending>(*this, here(to) ? inside_->send(data, bytes, layout_.position_of(to), tag)
                                                         : between_->send(data, bytes, to, tag));
    });
}

std::unique_ptr<Message> HostMessages::receive(void* data, std::size_t bytes, int from, std::uint32_t tag) {
    return guarded([&] {
        auto message = std::make_unique<Receiving>(*this, data, bytes, from, tag);
        waiting_.push_back(message.get());
        post_waiting();
        return message;
    });
}

int HostMessages::announced(std::uint32_t tag) {
    return guarded([&] {
        post_waiting();  // post receives that can be posted
        return sender(tag);
    });
}

int HostMessages::sender(std::uint32_t tag) {
    const int near = inside_ ? inside_->announced(tag) : Transport::all_left;
    return near >= 0 ? rank_inside(near) : between_->announced(tag);
}

void HostMessages::post_waiting() {
    std::vector<std::uint32_t> held_up;  // tags whose first receive, from any rank, has no sender yet: the next message
                                         // belongs to it
    for (auto next = waiting_.begin(); next != waiting_.end();) {
        Receiving& one = **next;
        const bool behind = std::find(held_up.begin(), held_up.end(), one.tag()) != held_up.end();
        int from = behind ? Transport::any_source : one.from();
        if (!behind && from == Transport::any_source) from = sender(one.tag());
        if (from == Transport::all_left) throw TransportError("all other ranks have left the group");
        if (from == Transport::any_source) {
            if (!behind) held_up.push_back(one.tag());
            ++next;
            continue;
        }
        one.post(from);
        next = waiting_.erase(next);
    }
}

void HostMessages::require_alive() const {
    if (!ended_) return;
    const std::lock_guard lock(mutex_);
    throw TransportError(reason_);
}

std::string HostMessages::failure() const {
    const std::lock_guard lock(mutex_);
    if (ended_) return reason_;
    std::string reason = inside_ ? inside_->failure() : std::string();
    return reason.empty() && between_ ? between_->failure() : reason;
}

void HostMessages::fail(const std::string& reason) {
    end(reason);
    require_alive();
    throw TransportError(reason);
}

void HostMessages::end(const std::string& reason) noexcept {
    try {
        if (ended_) return;
        const std::string first = first_reason(reason);  // asks the store, so without the lock
        {
            const std::lock_guard lock(mutex_);
            if (ended_) return;
            reason_ = first;
            ended_ = true;
            ++aborting_;  // `close` waits for this thread
        }
        if (inside_) inside_->abort(first);
        if (between_) between_->abort(first);
        const std::lock_guard lock(mutex_);
        --aborting_;
        aborted_.notify_all();
    } catch (const std::exception&) {  // no memory for the text: the others see that this rank has left
    }
}

/// Gloo closes connections without a reason. So the rank that ends the group first writes the reason to the store, and
/// a rank that finds its connection closed reads it there.
std::string HostMessages::first_reason(const std::string& reason) noexcept {
    try {
        const std::string own = reason.starts_with("rank") ? reason : fmt::format("rank {}: {}", rank_, reason);
        const std::string first = store_->compare_set(ended_key, "", own);
        return first == own ? reason : first;
    } catch (const std::exception&) {  // the store ended with its rank
        return reason;
    }
}

void HostMessages::close() {
    {
        std::unique_lock lock(mutex_);
        if (!ended_) reason_ = "the group has been destroyed";
        ended_ = true;
        aborted_.wait(lock, [this] { return aborting_ == 0; });
    }
    inside_.reset();
    between_.reset();
}

}  // namespace lockstep
