#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/parallel/comm/store/local_key_server.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/parallel/comm/store/store_address.h"
#include "lockstep/parallel/comm/store/store_protocol.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

using namespace store_protocol;

namespace {

using std::chrono::milliseconds;

/// Time for one attempt: at a single port, where the server's limit is the same, and at each of several ports.
constexpr milliseconds time_for_hello(5000), time_to_greet(500);
constexpr milliseconds first_pause(5), longest_pause(500);
constexpr std::string_view no_store = "the process that answers is not a store";

/// Text from the other side, which is not trusted: without control characters and limited in length.
std::string printable(std::string_view text) {
    constexpr std::size_t longest = 300;
    std::string line(text.substr(0, longest));
    for (char& c : line)
        if (c < ' ' || c > '~') c = '?';
    return line;
}

}  // namespace

/// Sends one request at a time, each answered before the next.
class TcpStore::Connection {
public:
    explicit Connection(const TcpStoreOptions& options)
        : options_(sound("TcpStore", options, 1)), for_this_user_(is_loopback(options_.host) && options.token.empty()) {
        if (options_.token.size() > longest_token)
            throw InvalidArgument(fmt::format("TcpStore: a token of {} bytes; expected at most {}",
                                              options_.token.size(), longest_token));
        connect();
    }

    const TcpStoreOptions& options() const { return options_; }
    std::string describe() const { return fmt::format("store of rank 0 at {}:{}", options_.host, options_.port); }

    /// The answer's field (empty if it has none), or nullopt if the server reports the key as missing.
    std::optional<std::string> ask(std::string_view what, Command command, const std::vector<std::string_view>& fields,
                                   Milliseconds timeout) {
        const std::scoped_lock lock(mutex_);
        if (!socket_) throw CommunicationError(why_closed_);
        Reply reply = exchange(command, fields, RunClock::now() + timeout, max_frame_bytes);
        if (!reply.failure.empty()) {
            socket_.reset();  // a later answer would be taken for that of another request
            why_closed_ = reply.lost ? gone() : given_up(what, reply.failure);
            if (reply.lost) throw CommunicationError(gone());
            throw CommunicationError(fmt::format("{}: {}: {}", describe(), what, reply.failure));
        }
        if (reply.answer == Answer::missing) return std::nullopt;
        if (reply.answer == Answer::good) return std::move(reply.field);
        throw CommunicationError(fmt::format("{}: {}: refused: {}", describe(), what, printable(reply.field)));
    }

private:
    struct Reply {
        std::string failure = {};  ///< empty if there is an answer
        bool lost = false;         ///< the other side has closed the connection
        Answer answer = Answer::good;
        std::string field = {};
    };

    Reply exchange(Command command, const std::vector<std::string_view>& fields, Deadline deadline,
                   std::size_t longest) {
        Reply reply;
        std::string bytes(4, '\0');
        reply.failure = send_all(socket_, encode(static_cast<std::uint8_t>(command), fields), deadline);
        if (reply.failure.empty()) reply.failure = receive_all(socket_, bytes.data(), bytes.size(), deadline);
        std::optional<Frame> frame;
        if (reply.failure.empty()) {
            const std::size_t length = length_of(bytes);
            if (length > 0 && length <= longest) {
                bytes.resize(length);
                reply.failure = receive_all(socket_, bytes.data(), length, deadline);
                if (reply.failure.empty()) frame = decode(bytes);
            }
            if (reply.failure.empty() &&
                (!frame || frame->fields.size() > 1 || frame->kind > static_cast<std::uint8_t>(Answer::refused)))
                reply.failure = no_store;
        }
        reply.lost = is_end_of_connection(reply.failure);
        if (!reply.failure.empty()) return reply;
        reply.answer = static_cast<Answer>(frame->kind);
        if (!frame->fields.empty()) reply.field = std::move(frame->fields[0]);
        return reply;
    }

    std::string gone() const {
        return describe() +
               " has closed the connection: that rank has left or died, or it evicted this client for not reading its "
               "replies";
    }

    /// The error for a stopped server process, which keeps its connections and does not answer.
    std::string given_up(std::string_view what, std::string_view failure) const {
        return fmt::format("{} is unusable since a request to {} failed: {}; the process of rank 0 may be stopped",
                           describe(), what, failure);
    }

    /// Tries until the deadline: the server may not be listening yet, and one with many strangers closes slow
    /// newcomers.
    void connect() {
        const Deadline deadline = RunClock::now() + options_.time_limit;
        const int first = options_.port, end = first + options_.ports;
        for (milliseconds pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
            std::string failure;
            for (int port = first; port < end; ++port) try {
                    options_.port = port;
                    enter(std::min(deadline, RunClock::now() + (options_.ports == 1 ? time_for_hello : time_to_greet)));
                    options_.ports = 1;  // clones know the port
                    return;
                } catch (const NotAdmitted& error) {
                    if (options_.ports == 1) throw;  // another process may hold one of several ports
                    failure = error.what();
                } catch (const CommunicationError& error) {
                    failure = error.what();
                }
            if (RunClock::now() + pause >= deadline) give_up(first, failure);
            pause_for(pause);
        }
    }

    [[noreturn]] void give_up(int first, const std::string& failure) const {
        if (options_.ports == 1) throw CommunicationError(failure);
        throw CommunicationError(fmt::format(
            "no store of this job at {}, ports {} to {}: {}; expected the process of rank 0 at this address",
            options_.host, first, first + options_.ports - 1, failure));
    }

    /// One attempt.
    void enter(Deadline deadline) {
        std::string token = for_this_user_ ? token_of_key_server(deadline) : options_.token;
        for (;;) {
            socket_ = connect_to(options_.host, options_.port, deadline);
            const std::string failure = authenticate(token, deadline);
            if (failure.empty()) break;
            socket_.reset();
            // The server may have started after the key server was looked for.
            if (for_this_user_ && token.empty())
                token = token_of_key_server(deadline);
            else
                token.clear();
            if (token.empty()) throw NotAdmitted(failure);
        }
        options_.token = std::move(token);
    }

    /// Empty if there is no key server.
    std::string token_of_key_server(Deadline deadline) const {
        KeyReply reply = fetch_key(options_.port, deadline);
        if (!reply.refusal.empty()) throw NotAdmitted(reply.refusal);
        return std::move(reply.key);
    }

    /// Returns nullopt if both sides know the token, otherwise the reason. Throws errors that another attempt may
    /// overcome.
    std::string authenticate(std::string_view token, Deadline deadline) {
        handshake::Meeting meeting{handshake::random_bytes(handshake::nonce_size), {}, options_.port, options_.job};
        const auto tell = [&](Command command, const std::vector<std::string_view>& fields) {
            Reply reply = exchange(command, fields, deadline, longest_hello);
            if (!reply.failure.empty() && reply.failure != no_store)
                throw CommunicationError(fmt::format("{}: hello: {}", describe(), reply.failure));
            if (reply.failure.empty() && reply.answer == Answer::missing) reply.failure = no_store;
            if (reply.failure.empty() && reply.answer == Answer::refused)
                reply.failure = "refused: " + printable(reply.field);
            if (!reply.failure.empty()) reply.failure = fmt::format("{}: hello: {}", describe(), reply.failure);
            return reply;
        };
        Reply reply = tell(Command::hello, {magic, meeting.client_nonce});
        if (!reply.failure.empty()) return reply.failure;
        if (reply.field.size() != handshake::nonce_size) return fmt::format("{}: hello: {}", describe(), no_store);
        meeting.server_nonce = reply.field;
        reply = tell(Command::proof, {handshake::proof_of(handshake::Side::client, token, meeting)});
        if (!reply.failure.empty()) return reply.failure;
        if (handshake::equal(reply.field, handshake::proof_of(handshake::Side::server, token, meeting)) &&
            !token.empty())
            return {};
        return fmt::format("{}: hello: the listening process does not know the token: it is not this job's rank 0",
                           describe());
    }

    TcpStoreOptions options_;
    const bool for_this_user_;
    std::mutex mutex_;
    Descriptor socket_;
    std::string why_closed_;  ///< reason why there is no socket
};

namespace {

/// Time beyond the deadline that the server was given, for its answer.
constexpr Store::Milliseconds grace(250);

std::int64_t number_in(const std::optional<std::string>& field, const std::string& store) {
    const std::optional<std::int64_t> value = field ? number(*field) : std::nullopt;
    if (!value) throw CommunicationError(store + ": an answer is not a number; the store is of another version");
    return *value;
}

}  // namespace

TcpStore::TcpStore(const TcpStoreOptions& options) : connection_(std::make_unique<Connection>(options)) {}
TcpStore::~TcpStore() = default;

void TcpStore::set(std::string_view key, std::string_view value) {
    require_value(key, value);
    connection_->ask(fmt::format("set '{}'", key), Command::set, {key, value}, time_limit());
}

std::string TcpStore::get(std::string_view key, Milliseconds timeout) {
    require_key(key);
    const std::string what = fmt::format("get '{}'", key);
    std::optional<std::string> value = connection_->ask(what, Command::get, {key, number(timeout.count())},
                                                        std::max(timeout, Milliseconds(0)) + grace);
    if (!value)
        throw CommunicationError(
            fmt::format("{}: {}: the key was not set within {} ms", describe(), what, timeout.count()));
    return std::move(*value);
}

std::optional<std::string> TcpStore::try_get(std::string_view key) {
    require_key(key);
    return connection_->ask(fmt::format("try_get '{}'", key), Command::try_get, {key}, time_limit());
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t amount) {
    require_key(key);
    return number_in(
        connection_->ask(fmt::format("add to '{}'", key), Command::add, {key, number(amount)}, time_limit()),
        describe());
}

std::string TcpStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
    require_value(key, expected);
    require_value(key, desired);
    return connection_
        ->ask(fmt::format("compare_set '{}'", key), Command::compare_set, {key, expected, desired}, time_limit())
        .value_or("");
}

int TcpStore::port() const { return connection_->options().port; }

void TcpStore::append_on_loss(std::string_view key, std::string_view text) {
    require_key(key);
    if (text.size() > longest_last_words)
        throw InvalidArgument(fmt::format("store: append_on_loss of {} bytes to '{}'; expected at most {}", text.size(),
                                          key, longest_last_words));
    connection_->ask(fmt::format("append_on_loss to '{}'", key), Command::append_on_loss, {key, text}, time_limit());
}

bool TcpStore::remove(std::string_view key) {
    require_key(key);
    return number_in(connection_->ask(fmt::format("remove '{}'", key), Command::remove, {key}, time_limit()),
                     describe()) != 0;
}

std::int64_t TcpStore::count() {
    return number_in(connection_->ask("count", Command::count, {}, time_limit()), describe());
}

std::unique_ptr<Store> TcpStore::clone(Milliseconds timeout) {
    TcpStoreOptions options = connection_->options();
    options.time_limit = timeout;
    return std::make_unique<TcpStore>(options);
}

Store::Milliseconds TcpStore::time_limit() const { return connection_->options().time_limit; }

std::string TcpStore::describe() const { return connection_->describe(); }

}  // namespace lockstep
