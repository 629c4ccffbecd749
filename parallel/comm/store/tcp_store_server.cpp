#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/parallel/comm/store/local_key_server.h"
#include "lockstep/parallel/comm/store/served_client.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/parallel/comm/store/store_address.h"
#include "lockstep/parallel/comm/store/store_commands.h"
#include "lockstep/parallel/comm/store/store_protocol.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/log.h"

namespace lockstep {

namespace {

using namespace store_protocol;
using Standing = ServedClient::Standing;
using std::chrono::milliseconds;

/// Strangers are connections that have not proved that they know the token. Their number is limited, to at most a 16th
/// of the descriptors that the process may have, and each may exist for at most `time_for_hello`. When all places are
/// taken, a newcomer replaces the oldest stranger that has sent nothing, or else the oldest.
constexpr std::size_t min_strangers = 4, max_strangers = 64, part_for_strangers = 16;
constexpr milliseconds time_for_hello(5000);
constexpr std::size_t max_clients = 4096;
/// Descriptors that clients leave to the job.
constexpr std::size_t left_to_job = 256;
/// Connections accepted in one turn of the loop.
constexpr int max_newcomers = 64;
/// Without descriptors for newcomers, none are accepted for this long; they wait in the kernel's queue.
constexpr milliseconds time_without_newcomers(50);
/// In one turn of the loop: requests and bytes sent per client, bytes received from all clients together.
constexpr int max_requests = 64;
constexpr std::size_t max_sent = std::size_t{1} << 20, max_received = std::size_t{8} << 20;
/// Bytes that the kernel may buffer per connection and direction; it doubles the number.
constexpr int kernel_buffer = 1 << 18;
/// Memory held for all clients together: unfinished requests, and values that the store no longer holds but that have
/// not been read yet.
constexpr std::size_t max_waiting = std::size_t{64} << 20;
/// A client that holds less than this is not closed to free memory.
constexpr std::size_t little = 65536;

/// Number of connections that this process has room for.
struct Room {
    std::size_t strangers = max_strangers, clients = max_clients;

    Room() {
        rlimit descriptors{};
        if (getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return;
        const auto all = static_cast<std::size_t>(descriptors.rlim_cur);
        strangers = std::clamp(all / part_for_strangers, min_strangers, max_strangers);
        clients = std::min(max_clients, std::max(all / 2, all - std::min(all, left_to_job + strangers)));
    }
};

}  // namespace

class TcpStoreServer::Impl {
public:
    explicit Impl(const TcpStoreOptions& given) : token_(given.token), job_(given.job) {
        const TcpStoreOptions options = sound("TcpStoreServer", given, 0);
        if (token_.size() > longest_token)
            throw InvalidArgument(
                fmt::format("TcpStoreServer: a token of {} bytes; expected at most {}", token_.size(), longest_token));
        const bool for_this_user = token_.empty();
        if (for_this_user && !is_loopback(options.host))
            throw InvalidArgument(
                fmt::format("TcpStoreServer: {} can be reached from other machines; expected a token that all ranks "
                            "know (LOCKSTEP_STORE_TOKEN)",
                            options.host));
        for (int port = options.port; !listener_; ++port) try {
                open(options.host, port, for_this_user);
            } catch (const CommunicationError&) {
                listener_.reset();
                if (port + 1 >= options.port + options.ports) throw;
            }
        wake_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (!wake_)
            throw CommunicationError(fmt::format("store: cannot create an event descriptor: {}", text_of(errno)));
        thread_ = std::thread([this] {
            try {
                serve();
            } catch (const std::exception&) {  // out of memory: all connections end with the server
                return;
            }
        });
    }

    ~Impl() {
        const std::uint64_t one = 1;
        while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
        }
        if (thread_.get_id() == std::this_thread::get_id())
            thread_.detach();  // a handler of its warnings ends the process
        else
            thread_.join();
    }

    int port() const { return port_; }

private:
    using Clients = std::list<ServedClient>;

    void open(const std::string& host, int port, bool for_this_user) {
        listener_ = listen_on(host, port);
        // Accepted connections inherit it: data that a client does not read fills the kernel's buffer first.
        for (const int buffer : {SO_SNDBUF, SO_RCVBUF})
            setsockopt(listener_.get(), SOL_SOCKET, buffer, &kernel_buffer, sizeof kernel_buffer);
        port_ = port_of(listener_);
        if (for_this_user) token_ = key_server_.emplace(port_).key();
    }

    void serve() {
        for (;;) {
            std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
            std::optional<Deadline> next;
            const auto by = [&](Deadline deadline) { next = next ? std::min(*next, deadline) : deadline; };
            if (RunClock::now() >= newcomers_from_) {
                entries[1].fd = listener_.get();
                if (key_server_) entries[2].fd = key_server_->descriptor();
            } else {
                by(newcomers_from_);
            }
            for (const Clients* all : {&clients_, &strangers_})
                for (const ServedClient& client : *all) {
                    entries.push_back({client.descriptor(), client.events(), 0});
                    if (client.wants || client.standing != Standing::known) by(client.deadline);
                    if (client.postponed()) by(RunClock::now());
                }
            if (poll(entries.data(), entries.size(), next ? poll_time(*next) : -1) < 0 && errno != EINTR) return;
            if (entries[0].revents != 0) return;
            serve_ready(entries);
            if (entries[2].revents != 0) wait_for_descriptors(key_server_->serve());
            if (entries[1].revents != 0) welcome();
        }
    }

    /// `entries`: wake, listener and key server, then clients and strangers in the order of their lists.
    void serve_ready(const std::vector<pollfd>& entries) {
        auto entry = entries.begin() + 3;
        auto stranger = entry + static_cast<std::ptrdiff_t>(clients_.size());
        std::size_t to_receive = max_received;
        for (auto client = clients_.begin(); client != clients_.end() && to_receive > 0; ++entry) {
            const auto next = std::next(client);
            if (!serve(*client, entry->revents, to_receive)) lose(client);
            client = next;
            // The clients that were not reached are first in the next turn.
            if (to_receive == 0) clients_.splice(clients_.end(), clients_, clients_.begin(), client);
        }
        evict_to(max_waiting);
        for (auto client = strangers_.begin(); client != strangers_.end(); ++stranger)
            client = serve_stranger(client, stranger->revents);
    }

    /// Returns the next stranger.
    Clients::iterator serve_stranger(Clients::iterator client, short events) {
        const auto next = std::next(client);
        std::size_t to_receive = longest_hello + 4;
        if (!serve(*client, events, to_receive))
            strangers_.erase(client);
        else if (client->standing == Standing::known)
            clients_.splice(clients_.end(), strangers_, client);
        return next;
    }

    /// Reads, answers, writes. Returns false if the client has left or must be closed.
    bool serve(ServedClient& client, short events, std::size_t& to_receive) try {
        std::size_t to_send = max_sent;
        if (!client.send(to_send) || !client.receive(events, to_receive)) return false;
        if (RunClock::now() >= client.deadline) {
            if (client.standing != Standing::known) return false;
            if (client.wants) client.answer(Answer::missing);
        }
        int requests = max_requests;
        Frame frame;
        for (auto found = ServedClient::Next::frame; requests > 0 && found != ServedClient::Next::none; --requests) {
            found = client.next(frame);
            if (found == ServedClient::Next::garbage)
                refuse(client, "invalid frame");
            else if (found == ServedClient::Next::frame)
                client.standing == Standing::known ? execute(client, std::move(frame)) : greet(client, frame);
            if (!client.send(to_send)) return false;
        }
        client.leave_for_later(requests == 0);
        return !(client.leaving && !client.sending());
    } catch (const std::exception&) {  // out of memory: only this client is closed
        return false;
    }

    /// Accepts newcomers and reads at once what they have sent: a hello protects them from the next newcomer.
    void welcome() {
        for (int i = 0; i < max_newcomers; ++i) {
            Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
            if (!socket) {
                if (errno == ECONNABORTED || errno == EINTR) continue;
                return wait_for_descriptors(errno == EAGAIN ? 0 : errno);
            }
            if (strangers_.size() >= room_.strangers) evict_stranger();
            strangers_.emplace_back(std::move(socket), RunClock::now() + time_for_hello);
            serve_stranger(std::prev(strangers_.end()), POLLIN);
        }
    }

    void evict_stranger() {
        const auto silent = std::find_if(strangers_.begin(), strangers_.end(), [](const ServedClient& client) {
            return client.standing == Standing::silent;
        });
        const auto goes = silent == strangers_.end() ? strangers_.begin() : silent;
        goes->cut();
        strangers_.erase(goes);
    }

    void warn_of_limit(int error) const {
        try {
            warn(fmt::format("the store at port {} cannot accept connections: {}", port_, text_of(error)));
        } catch (...) {  // an exception of the user's handler must not end the store
        }
    }

    void wait_for_descriptors(int error) {
        if (error == 0) return;
        if (!std::exchange(warned_of_limit_, true)) warn_of_limit(error);
        if (!strangers_.empty()) evict_stranger();
        newcomers_from_ = RunClock::now() + time_without_newcomers;
    }

    /// Closes clients, those without a read or write for longest first, until at most `most` bytes are held.
    void evict_to(std::size_t most) {
        for (;;) {
            std::size_t waiting = 0;
            std::set<const std::string*> counted;
            auto slowest = clients_.end();
            for (auto client = clients_.begin(); client != clients_.end(); ++client) {
                const KeyTable::Value& value = client->value();
                const bool left_over = value && keys_.find(client->key()) != value;
                const std::size_t bytes = client->received_bytes() + (left_over ? value->size() : 0);
                waiting += client->received_bytes();
                if (left_over && counted.insert(value.get()).second) waiting += value->size();
                if (bytes > little && (slowest == clients_.end() || client->last_progress() < slowest->last_progress()))
                    slowest = client;
            }
            if (waiting <= most || slowest == clients_.end()) return;
            slowest->cut();
            lose(slowest);
        }
    }

    void lose(Clients::iterator client) {
        const ServedClient lost = std::move(*client);
        clients_.erase(client);
        if (lost.last_words.empty()) return;
        const KeyTable::Value before = keys_.find(lost.last_words_key);
        const std::string all = (before ? *before : std::string()) + lost.last_words;
        if (all.size() > Store::max_value_bytes || !has_room(keys_, lost.last_words_key, all.size())) return;
        keys_.set(lost.last_words_key, all);
        changed(lost.last_words_key);
    }

    void greet(ServedClient& client, const Frame& frame) {
        const auto command = static_cast<Command>(frame.kind);
        if (client.standing == Standing::silent) {
            if (command != Command::hello || frame.fields.size() != 2 || !frame.fields[0].starts_with(any_magic))
                return refuse(client, "this store uses another protocol");
            if (frame.fields[0] != magic || frame.fields[1].size() != handshake::nonce_size)
                return refuse(
                    client,
                    "this store uses another version of the protocol; run the same version of Lockstep on all ranks");
            client.standing = Standing::greeted;
            client.meeting = {frame.fields[1], handshake::random_bytes(handshake::nonce_size), port_, job_};
            return client.answer(Answer::good, std::make_shared<const std::string>(client.meeting.server_nonce));
        }
        if (command != Command::proof || !well_formed(frame)) return refuse(client, "this store uses another protocol");
        if (!handshake::equal(frame.fields[0], handshake::proof_of(handshake::Side::client, token_, client.meeting)))
            return refuse(client,
                          "the token is wrong (LOCKSTEP_STORE_TOKEN), this is another job's store, or its port is "
                          "forwarded from another number");
        if (clients_.size() >= room_.clients)
            return refuse(
                client,
                fmt::format("it serves {} connections, which is its limit; raise the limit of descriptors (ulimit -n)",
                            clients_.size()));
        client.standing = Standing::known;
        client.answer(Answer::good, std::make_shared<const std::string>(
                                        handshake::proof_of(handshake::Side::server, token_, client.meeting)));
        client.meeting = {};
    }

    void execute(ServedClient& client, Frame frame) {
        if (static_cast<Command>(frame.kind) == Command::append_on_loss && well_formed(frame)) {
            if (frame.fields[1].size() > longest_last_words) return refuse(client, "unknown command");
            client.last_words_key = std::move(frame.fields[0]);
            client.last_words = std::move(frame.fields[1]);
            return client.answer(Answer::good);
        }
        Outcome outcome = execute_command(keys_, std::move(frame));
        if (outcome.patience) {
            client.deadline = deadline_in(*outcome.patience);
            client.wants = std::move(outcome.key);
            return;
        }
        client.leaving = outcome.breach;
        client.answer(outcome.answer, std::move(outcome.value), outcome.key);
        if (outcome.changed) changed(outcome.key);
    }

    /// Answers the clients that wait for `key`.
    void changed(const std::string& key) {
        const KeyTable::Value value = keys_.find(key);
        for (ServedClient& client : clients_) {
            if (client.wants != key) continue;
            client.answer(Answer::good, value, key);
            std::size_t most = max_sent;
            client.send(most);             // a failure is handled in the next turn
            client.leave_for_later(true);  // it may have sent more requests
        }
    }

    static void refuse(ServedClient& client, std::string_view why) {
        client.leaving = true;
        client.answer(Answer::refused, std::make_shared<const std::string>(why));
    }

    std::string token_;
    const std::string job_;
    const Room room_;
    Descriptor listener_, wake_;
    int port_ = 0;
    std::optional<LocalKeyServer> key_server_;
    KeyTable keys_;
    Clients clients_, strangers_;
    Deadline newcomers_from_{};
    bool warned_of_limit_ = false;
    std::thread thread_;
};

TcpStoreServer::TcpStoreServer(const TcpStoreOptions& options) : impl_(std::make_unique<Impl>(options)) {}
TcpStoreServer::~TcpStoreServer() = default;
int TcpStoreServer::port() const { return impl_->port(); }

}  // namespace lockstep
