#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/sockets.h"
#include "lockstep/parallel/comm/store_protocol.h"
#include "lockstep/parallel/store.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

using namespace store_protocol;

/// One question at a time, each answered before the next.
class TcpStore::Connection {
public:
    explicit Connection(const TcpStoreOptions& options) : options_(options) {
        if (options_.token.size() > longest_token)
            throw InvalidArgument(fmt::format("TcpStore: a token of {} bytes; at most {} are sent",
                                              options_.token.size(), longest_token));
        const Deadline deadline = std::chrono::steady_clock::now() + options_.timeout;
        if (options_.ports == 1)
            say_hello(deadline, Attempts::many);
        else
            look_for_it(deadline);
    }

    const TcpStoreOptions& options() const { return options_; }
    std::string describe() const { return fmt::format("store of rank 0 at {}:{}", options_.host, options_.port); }

    /// The answer's field (empty without one), or nothing when the server says that the key is missing.
    std::optional<std::string> ask(std::string_view what, Command command, const std::vector<std::string_view>& fields,
                                   Milliseconds timeout) {
        const std::scoped_lock lock(mutex_);
        if (!socket_) throw CommunicationError(gone());
        const Deadline deadline = std::chrono::steady_clock::now() + timeout;
        std::string failure = send_all(socket_, encode(static_cast<std::uint8_t>(command), fields), deadline);
        std::array<char, 4> size{};
        if (failure.empty()) failure = receive_all(socket_, size.data(), size.size(), deadline);
        std::optional<Frame> frame;
        if (failure.empty()) {
            const std::size_t length = length_of({size.data(), size.size()});
            if (length > 0 && length <= longest_frame) {
                std::string bytes(length, '\0');
                failure = receive_all(socket_, bytes.data(), length, deadline);
                frame = decode(bytes);
            }
            if (failure.empty() && (!frame || frame->fields.size() > 1)) failure = "what answers there is no store";
        }
        if (!failure.empty()) {
            socket_.reset();  // an answer that comes later would be taken for that of another question
            if (failure == connection_closed && command != Command::hello) throw CommunicationError(gone());
            throw CommunicationError(fmt::format("{}: {}: {}", describe(), what, failure));
        }
        switch (static_cast<Answer>(frame->kind)) {
            case Answer::good: return frame->fields.empty() ? std::string() : std::move(frame->fields[0]);
            case Answer::missing: return std::nullopt;
            case Answer::refused: break;
        }
        throw CommunicationError(
            fmt::format("{}: {}: refused: {}", describe(), what,
                        frame->fields.empty() ? std::string("no reason given") : frame->fields[0]));
    }

private:
    /// For a port of several to show what is there.
    static constexpr Milliseconds time_to_greet{500};

    std::string gone() const { return describe() + " has gone: that rank has left or died"; }
    void look_for_it(Deadline deadline) {
        const int first = options_.port;
        for (Milliseconds pause(5);; pause = std::min(2 * pause, Milliseconds(200))) {
            for (int port = first; port < first + options_.ports; ++port) {
                const Deadline soon = std::chrono::steady_clock::now() + time_to_greet;
                try {
                    options_.port = port;
                    say_hello(std::min(soon, deadline), Attempts::one);
                    options_.ports = 1;  // clones know where it is
                    return;
                } catch (const CommunicationError&) {  // a stranger's, or nobody's yet
                    if (soon >= deadline) throw;
                }
            }
            std::this_thread::sleep_for(pause);
        }
    }

    void say_hello(Deadline deadline, Attempts attempts) {
        socket_ = connect_to(options_.host, options_.port, deadline, attempts);
        ask("hello", Command::hello, {magic, options_.token}, Milliseconds(milliseconds_until(deadline)));
    }

    TcpStoreOptions options_;
    std::mutex mutex_;
    Descriptor socket_;
};

namespace {

/// What a server is given beyond the deadline it was told, to answer.
constexpr Store::Milliseconds grace(250);

std::int64_t number_in(const std::optional<std::string>& field, const std::string& store) {
    const std::optional<std::int64_t> value = field ? number(*field) : std::nullopt;
    if (!value) throw CommunicationError(store + ": an answer is no number; what runs there is another version");
    return *value;
}

}  // namespace

TcpStore::TcpStore(const TcpStoreOptions& options) : connection_(std::make_unique<Connection>(options)) {}
TcpStore::~TcpStore() = default;

void TcpStore::set(std::string_view key, std::string_view value) {
    require_value(key, value);
    connection_->ask(fmt::format("set '{}'", key), Command::set, {key, value}, timeout());
}

std::string TcpStore::get(std::string_view key, Milliseconds timeout) {
    require_key(key);
    const std::string what = fmt::format("get '{}'", key);
    std::optional<std::string> value = connection_->ask(what, Command::get, {key, number(timeout.count())},
                                                        std::max(timeout, Milliseconds(0)) + grace);
    if (!value)
        throw CommunicationError(fmt::format("{}: {}: nobody has set it for {} ms", describe(), what, timeout.count()));
    return std::move(*value);
}

std::optional<std::string> TcpStore::try_get(std::string_view key) {
    require_key(key);
    return connection_->ask(fmt::format("try_get '{}'", key), Command::try_get, {key}, timeout());
}

std::int64_t TcpStore::add(std::string_view key, std::int64_t amount) {
    require_key(key);
    return number_in(connection_->ask(fmt::format("add to '{}'", key), Command::add, {key, number(amount)}, timeout()),
                     describe());
}

std::string TcpStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
    require_value(key, expected);
    require_value(key, desired);
    return connection_
        ->ask(fmt::format("compare_set '{}'", key), Command::compare_set, {key, expected, desired}, timeout())
        .value_or("");
}

void TcpStore::append_on_loss(std::string_view key, std::string_view text) {
    require_value(key, text);
    connection_->ask(fmt::format("append_on_loss to '{}'", key), Command::append_on_loss, {key, text}, timeout());
}

bool TcpStore::remove(std::string_view key) {
    require_key(key);
    return number_in(connection_->ask(fmt::format("remove '{}'", key), Command::remove, {key}, timeout()),
                     describe()) != 0;
}

std::int64_t TcpStore::count() {
    return number_in(connection_->ask("count", Command::count, {}, timeout()), describe());
}

std::unique_ptr<Store> TcpStore::clone(Milliseconds timeout) {
    TcpStoreOptions options = connection_->options();
    options.timeout = timeout;
    return std::make_unique<TcpStore>(options);
}

Store::Milliseconds TcpStore::timeout() const { return connection_->options().timeout; }

std::string TcpStore::describe() const { return connection_->describe(); }

}  // namespace lockstep
