#include "lockstep/parallel/comm/store/served_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace lockstep {

using namespace store_protocol;

namespace {

/// Values up to this size are copied; longer ones are sent from the memory where they are stored.
constexpr std::size_t small = 4096;
/// Capacity that the receive buffer retains; a larger one is freed after use.
constexpr std::size_t usual_buffer = 65536;

bool is_for_later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

void ServedClient::cut() const {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

short ServedClient::events() const {
    // POLLRDHUP reports that the client has left, even while nothing is read.
    return static_cast<short>((reads() ? POLLIN : POLLRDHUP) | (sending() ? POLLOUT : 0));
}

bool ServedClient::receive(short events, std::size_t& most) {
    if (!reads()) return (events & (POLLHUP | POLLERR)) == 0 && (postponed_ || (events & POLLRDHUP) == 0);
    if ((events & (POLLIN | POLLHUP | POLLERR)) == 0) return true;
    in_.erase(0, std::exchange(begin_, 0));
    std::array<char, usual_buffer> bytes;
    const ssize_t received = recv(socket_.get(), bytes.data(), std::min(bytes.size(), most), 0);
    if (received < 0) return is_for_later(errno);
    in_.append(bytes.data(), static_cast<std::size_t>(received));
    most -= static_cast<std::size_t>(received);
    last_progress_ = RunClock::now();
    return received > 0;
}

ServedClient::Next ServedClient::next(Frame& frame) {
    const std::string_view all = std::string_view(in_).substr(begin_);
    if (sending() || wants || leaving || all.size() < 4) return Next::none;
    const std::size_t size = length_of(all);
    if (size == 0 || size > max_frame_bytes()) return Next::garbage;
    if (all.size() - 4 < size) return Next::none;
    std::optional<Frame> found = decode(all.substr(4, size));
    begin_ += 4 + size;
    if (begin_ == in_.size()) {
        in_.clear();
        begin_ = 0;
        if (in_.capacity() > usual_buffer) in_.shrink_to_fit();
    }
    if (!found) return Next::garbage;
    frame = std::move(*found);
    return Next::frame;
}

void ServedClient::answer(Answer kind, KeyTable::Value value, std::string key) {
    wants.reset();
    sent_ = 0;
    if (!value) {
        head_ = encode(static_cast<std::uint8_t>(kind), {});
    } else if (value->size() <= small) {
        head_ = encode(static_cast<std::uint8_t>(kind), {*value});
    } else {
        head_ = head_of(static_cast<std::uint8_t>(kind), value->size());
        value_ = std::move(value);
        key_ = std::move(key);
    }
}

bool ServedClient::send(std::size_t& most) {
    while (sending() && most > 0) {
        const std::string_view head = std::string_view(head_).substr(std::min(sent_, head_.size()));
        const std::string_view body =
            value_ ? std::string_view(*value_).substr(sent_ - std::min(sent_, head_.size())) : std::string_view();
        std::array<iovec, 2> parts{iovec{const_cast<char*>(head.data()), head.size()},
                                   iovec{const_cast<char*>(body.data()), std::min(body.size(), most)}};
        msghdr message{};
        message.msg_iov = parts.data();
        message.msg_iovlen = parts.size();
        const ssize_t result = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
        if (result < 0) return is_for_later(errno);
        const auto count = static_cast<std::size_t>(result);
        last_progress_ = RunClock::now();
        most -= std::min(most, count);
        sent_ += count;
        if (count == head.size() + body.size()) {
            head_.clear();
            key_.clear();
            value_.reset();
        }
    }
    return true;
}

}  // namespace lockstep
