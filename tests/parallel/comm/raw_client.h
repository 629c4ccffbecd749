// A client of a store's server that implements the protocol itself, correctly or not.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/parallel/comm/store/store_protocol.h"
#include "lockstep/tests/fixtures/waiting.h"

namespace lockstep::test {

class RawClient {
public:
    using Command = store_protocol::Command;

    explicit RawClient(int port) : port_(port), socket_(connect_to("127.0.0.1", port, soon())) {}

    static std::string frame(Command command, const std::vector<std::string_view>& fields) {
        return store_protocol::encode(static_cast<std::uint8_t>(command), fields);
    }
    static Deadline soon() { return RunClock::now() + hang; }

    const Descriptor& socket() const { return socket_; }
    /// Empty if it was sent; otherwise the error.
    std::string send(const std::string& bytes) const { return send_all(socket_, bytes, soon()); }
    /// Sends as much as possible without waiting.
    void push(const std::string& bytes) const {
        ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    /// Nullopt if the server has closed the connection, or does not answer in time.
    std::optional<store_protocol::Frame> receive() const {
        std::string bytes(4, '\0');
        if (!receive_all(socket_, bytes.data(), bytes.size(), soon()).empty()) return std::nullopt;
        bytes.resize(store_protocol::length_of(bytes));
        if (!receive_all(socket_, bytes.data(), bytes.size(), soon()).empty()) return std::nullopt;
        return store_protocol::decode(bytes);
    }
    /// The field of the answer to `bytes`; empty if it has none.
    std::string answer_to(const std::string& bytes) const {
        send(bytes);
        const auto answer = receive();
        return answer && !answer->fields.empty() ? answer->fields[0] : std::string();
    }
    /// Whether the server accepts the token.
    bool authenticate(const std::string& token, const std::string& job = {}) const {
        handshake::Meeting meeting{handshake::random_bytes(handshake::nonce_size), {}, port_, job};
        meeting.server_nonce = answer_to(frame(Command::hello, {store_protocol::magic, meeting.client_nonce}));
        const std::string proof =
            answer_to(frame(Command::proof, {handshake::proof_of(handshake::Side::client, token, meeting)}));
        return handshake::equal(proof, handshake::proof_of(handshake::Side::server, token, meeting));
    }
    /// The server's answers to `bytes`, until it closes the connection; it must do so in time.
    std::string last_words_to(const std::string& bytes) const {
        send(bytes);
        ::shutdown(socket_.get(), SHUT_WR);
        std::string answer;
        for (char byte = 0; receive_all(socket_, &byte, 1, soon()).empty();) answer += byte;
        return answer;
    }
    /// Whether the connection is broken, even if received data is left to read.
    bool broken() const {
        pollfd entry{socket_.get(), POLLRDHUP, 0};
        return poll(&entry, 1, 0) > 0;
    }

private:
    int port_;
    Descriptor socket_;
};

}  // namespace lockstep::test
