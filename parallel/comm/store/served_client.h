// A connection as the store's server sees it: bytes received but not carried out yet, and the one answer that is being
// sent. The next request is only read when that answer has been sent, so that neither grows while the client does not
// read.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/parallel/comm/store/store_commands.h"
#include "lockstep/parallel/comm/store/store_protocol.h"

namespace lockstep {

class ServedClient {
public:
    enum class Standing : std::uint8_t {
        silent,   ///< has sent nothing
        greeted,  ///< has sent hello, without authentication
        known     ///< has proved that it knows the token
    };

    ServedClient(Descriptor socket, Deadline time_for_hello) : deadline(time_for_hello), socket_(std::move(socket)) {}

    Standing standing = Standing::silent;
    handshake::Meeting meeting;
    std::string last_words_key, last_words;  ///< text that is appended to the key when the connection is lost
    std::optional<std::string> wants;        ///< the key of a waiting get
    Deadline deadline;                       ///< deadline of the wait, or of the handshake
    bool leaving = false;                    ///< is closed once its answer has been sent

    /// Makes the connection end with a reset: the kernel drops its buffered data and state.
    void cut() const;

    int descriptor() const { return socket_.get(); }
    /// For poll.
    short events() const;
    /// Reads at most `most` bytes and subtracts the number read; `events` are poll's. False if the client has left.
    bool receive(short events, std::size_t& most);

    enum class Next : std::uint8_t { none, frame, garbage };
    /// Takes the next request; `none` also while an answer is being sent or the client waits or leaves.
    Next next(store_protocol::Frame& frame);
    /// Whether received requests remain for the next turn.
    void leave_for_later(bool something) { postponed_ = something; }
    bool postponed() const { return postponed_; }

    /// Begins an answer. `key`: the key of the value, if it is one of the store's.
    void answer(store_protocol::Answer kind, KeyTable::Value value = nullptr, std::string key = {});
    /// Sends without blocking, at most `most` bytes, and subtracts the number sent. False if the client has left.
    bool send(std::size_t& most);
    bool sending() const { return !head_.empty(); }

    /// Memory used by received bytes.
    std::size_t received_bytes() const { return in_.capacity(); }
    /// The large value that is being sent, and its key; null: none.
    const KeyTable::Value& value() const { return value_; }
    const std::string& key() const { return key_; }
    /// Time of the last read or write.
    Deadline last_progress() const { return last_progress_; }

private:
    std::size_t max_frame_bytes() const {
        return standing == Standing::known ? store_protocol::max_frame_bytes : store_protocol::longest_hello;
    }
    bool reads() const { return !sending() && !wants && !leaving && !postponed_; }

    Descriptor socket_;
    std::string in_;
    std::size_t begin_ = 0;   ///< start of the unprocessed bytes
    std::string head_, key_;  ///< the answer up to a large value
    KeyTable::Value value_;
    std::size_t sent_ = 0;
    bool postponed_ = false;
    Deadline last_progress_ = RunClock::now();
};

}  // namespace lockstep
