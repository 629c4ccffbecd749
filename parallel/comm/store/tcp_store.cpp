#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
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

std::string described_store(const TcpStoreOptions& options) {
    return fmt::format("store of rank 0 at {}:{}", options.host, options.port);
}

/// Sends one request at a time, each answered before the next. For one thread at a time.
class StoreConnection {
public:
    /// `known`: the server has admitted this process before, so it listens as long as it exists.
    StoreConnection(const TcpStoreOptions& options, bool known)
        : options_(sound("TcpStore", options, 1)),
          for_this_user_(is_loopback(options_.host) && options.token.empty()),
          known_(known) {
        if (options_.token.size() > longest_token)
            throw InvalidArgument(fmt::format("TcpStore: a token of {} bytes; expected at most {}",
                                              options_.token.size(), longest_token));
        connect();
    }

    const TcpStoreOptions& options() const { return options_; }
    std::string describe() const { return described_store(options_); }

    /// The answer's field (empty if it has none), or nullopt if the server reports the key as missing.
    std::optional<std::string> ask(std::string_view what, Command command, const std::vector<std::string_view>& fields,
                                   milliseconds timeout) {
        if (ended_) throw StoreEnded(why_closed_);
        if (!socket_) throw CommunicationError(why_closed_);
        Reply reply = exchange(command, fields, deadline_in(timeout), max_frame_bytes);
        if (!reply.failure.empty()) {
            socket_.reset();  // a later answer would be taken for that of another request
            ended_ = reply.lost;
            why_closed_ = ended_ ? gone() : given_up(what, reply.failure);
            if (ended_) throw StoreEnded(why_closed_);
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
        const Deadline deadline = deadline_in(options_.time_limit);
        const int first = options_.port, end = first + options_.ports;
        constexpr int most_refusals = 3;  // a system may refuse while many connect at once
        int refusals = 0;
        for (milliseconds pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
            std::string failure;
            for (int port = first; port < end; ++port) try {
                    options_.port = port;
                    enter(std::min(deadline, RunClock::now() + (options_.ports == 1 ? time_for_hello : time_to_greet)));
                    options_.ports = 1;  // clones know the port
                    return;
                } catch (const ConnectionRefused& error) {
                    if (known_ && ++refusals > most_refusals) throw StoreEnded(gone());
                    failure = error.what();
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
    const bool known_;
    Descriptor socket_;
    std::string why_closed_;  ///< reason why there is no socket
    bool ended_ = false;      ///< the server has closed the connection
};

/// Time beyond the deadline that the server was given, for its answer.
constexpr milliseconds grace(250);
/// How long a request waits for the end of another thread's `get` before it opens a second connection.
constexpr milliseconds time_to_share(20);
/// Longest time between two looks of a `get` that does not wait at the server.
constexpr milliseconds longest_look(50);

std::int64_t number_in(const std::optional<std::string>& field, const std::string& store) {
    const std::optional<std::int64_t> value = field ? number(*field) : std::nullopt;
    if (!value) throw CommunicationError(store + ": an answer is not a number; the store is of another version");
    return *value;
}

}  // namespace

/// One connection, and a second one after a request was made while the `get` of another thread waited on the first.
/// From then on, a `get` waits on the first, and requests that the server answers at once use the second. If several
/// threads wait, one waits at the server and the others ask repeatedly, so that any number of threads need two of the
/// server's connections.
class TcpStore::Connections {
public:
    Connections(const TcpStoreOptions& options, bool known)
        : calls_(std::make_unique<StoreConnection>(options, known)), options_(calls_->options()) {}

    const TcpStoreOptions& options() const { return options_; }

    /// A request that the server answers at once.
    std::optional<std::string> ask(std::string_view what, Command command,
                                   const std::vector<std::string_view>& fields) {
        const Use use(*this, for_call());
        return use->ask(what, command, fields, options_.time_limit);
    }

    /// The value of the key; nullopt if it is not set in time.
    std::optional<std::string> get(std::string_view what, std::string_view key, milliseconds timeout) {
        const Deadline deadline = deadline_in(timeout);
        milliseconds left = std::min(bounded(timeout), time_until(deadline));
        for (milliseconds pause(1);; pause = std::min(2 * pause, longest_look)) {
            if (StoreConnection* const free = for_wait()) {
                const Use use(*this, free);
                return use->ask(what, Command::get, {key, number(left.count())}, left + grace);
            }
            std::optional<std::string> value = ask(what, Command::try_get, {key});
            if (value || RunClock::now() >= deadline) return value;
            pause_for(std::min(pause, time_until(deadline)));
            left = time_until(deadline);
        }
    }

    void append_on_loss(std::string_view what, std::string_view key, std::string_view text) {
        const Use use(*this, for_call());
        {
            const std::scoped_lock lock(mutex_);
            has_last_words_ = true;
        }
        use->ask(what, Command::append_on_loss, {key, text}, options_.time_limit);
    }

private:
    /// The exclusive use of a connection.
    class Use {
    public:
        Use(Connections& connections, StoreConnection* connection)
            : connections_(connections), connection_(connection) {}
        ~Use() { connections_.release(connection_); }
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;
        StoreConnection* operator->() const { return connection_; }

    private:
        Connections& connections_;
        StoreConnection* connection_;
    };

    StoreConnection* for_call() {
        std::unique_lock lock(mutex_);
        while (calls_busy_) {
            const auto changed = [this, waits = get_waits_] { return !calls_busy_ || get_waits_ != waits; };
            if (!get_waits_)
                changed_.wait(lock, changed);
            else if (!changed_.wait_for(lock, time_to_share, changed))
                return opened_for_call(lock);
        }
        calls_busy_ = true;
        return calls_.get();
    }

    /// The `get` that waits on the only connection keeps it.
    StoreConnection* opened_for_call(std::unique_lock<std::mutex>& lock) {
        gets_ = std::move(calls_);
        gets_busy_ = true;
        get_waits_ = false;
        std::unique_ptr<StoreConnection> made;
        try {
            lock.unlock();
            made = std::make_unique<StoreConnection>(options_, true);
            lock.lock();
        } catch (...) {
            lock.lock();
            calls_ = std::move(gets_);
            calls_busy_ = get_waits_ = std::exchange(gets_busy_, false);
            changed_.notify_all();
            throw;
        }
        calls_ = std::move(made);
        return calls_.get();
    }

    /// Null while another thread's `get` waits.
    StoreConnection* for_wait() {
        std::unique_lock lock(mutex_);
        while (!gets_ && !has_last_words_) {
            if (!calls_busy_) {
                calls_busy_ = get_waits_ = true;
                changed_.notify_all();
                return calls_.get();
            }
            if (get_waits_) return nullptr;
            changed_.wait(lock);
        }
        if (gets_busy_) return nullptr;
        gets_busy_ = true;
        if (!gets_) {
            lock.unlock();
            std::unique_ptr<StoreConnection> made;
            try {
                made = std::make_unique<StoreConnection>(options_, true);
            } catch (...) {
                lock.lock();
                gets_busy_ = false;
                throw;
            }
            lock.lock();
            gets_ = std::move(made);
        }
        return gets_.get();
    }

    void release(const StoreConnection* connection) {
        const std::scoped_lock lock(mutex_);
        if (gets_.get() == connection)
            gets_busy_ = false;
        else
            calls_busy_ = get_waits_ = false;
        changed_.notify_all();
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::unique_ptr<StoreConnection> calls_, gets_;  ///< gets_: null unless there are two
    bool calls_busy_ = false, gets_busy_ = false;
    bool get_waits_ = false;       ///< the only connection is used by a `get`
    bool has_last_words_ = false;  ///< the server connects the loss of `calls_` with a text
    const TcpStoreOptions options_;
};

TcpStore::TcpStore(const TcpStoreOptions& options) : connections_(std::make_unique<Connections>(options, false)) {}
TcpStore::TcpStore(const TcpStoreOptions& options, Clone)
    : connections_(std::make_unique<Connections>(options, true)) {}
TcpStore::~TcpStore() = default;

void TcpStore::set(std::string_view key, std::string_view value) {
    require_value(key, value);
    connections_->ask(fmt::format("set '{}'", key), Command::set, {key, value});
}

std::string TcpStore::get(std::string_view key, Milliseconds timeout) {
    require_key(key);
    const std::string what = fmt::format("get '{}'", key);
    std::optional<std::string> value = connections_->get(what, key, timeout);
    if (!value)
        throw CommunicationError(
            fmt::format("{}: {}: the key was not set within {} ms", describe(), what, timeout.count()));
    return std::move(*value);
}

std::optional<std::string> TcpStore::try_get(std::string_view key) {
    require_key(key);
    return connections_->ask(fmt::format("try_get '{}'", key), Command::try_get, {key});
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t amount) {
    require_key(key);
    return number_in(connections_->ask(fmt::format("add to '{}'", key), Command::add, {key, number(amount)}),
                     describe());
}

std::string TcpStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
    require_value(key, expected);
    require_value(key, desired);
    return connections_->ask(fmt::format("compare_set '{}'", key), Command::compare_set, {key, expected, desired})
        .value_or("");
}

int TcpStore::port() const { return connections_->options().port; }

void TcpStore::append_on_loss(std::string_view key, std::string_view text) {
    require_key(key);
    if (text.size() > longest_last_words)
        throw InvalidArgument(fmt::format("store: append_on_loss of {} bytes to '{}'; expected at most {}", text.size(),
                                          key, longest_last_words));
    connections_->append_on_loss(fmt::format("append_on_loss to '{}'", key), key, text);
}

bool TcpStore::remove(std::string_view key) {
    require_key(key);
    return number_in(connections_->ask(fmt::format("remove '{}'", key), Command::remove, {key}), describe()) != 0;
}

std::int64_t TcpStore::count() { return number_in(connections_->ask("count", Command::count, {}), describe()); }

std::unique_ptr<Store> TcpStore::clone(Milliseconds timeout) {
    TcpStoreOptions options = connections_->options();
    options.time_limit = timeout;
    return std::unique_ptr<Store>(new TcpStore(options, Clone()));
}

Store::Milliseconds TcpStore::time_limit() const { return connections_->options().time_limit; }

std::string TcpStore::describe() const { return described_store(connections_->options()); }

}  // namespace lockstep
