#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/key_table.h"
#include "lockstep/parallel/comm/sockets.h"
#include "lockstep/parallel/comm/store_protocol.h"
#include "lockstep/parallel/store.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

using namespace store_protocol;
using Clock = std::chrono::steady_clock;

constexpr std::size_t most_clients = 4096;
/// Who has connected and says nothing is sent away after so long.
constexpr std::chrono::seconds time_for_hello(10);

/// As long for every wrong token.
bool same_secret(std::string_view a, std::string_view b) {
    unsigned char different = a.size() == b.size() ? 0 : 1;
    for (std::size_t i = 0; i < a.size(); ++i)
        different |= static_cast<unsigned char>(a[i] ^ (b.empty() ? 0 : b[i % b.size()]));
    return different == 0;
}

struct Client {
    Descriptor socket;
    std::string in, out;
    std::string will_key, will;        ///< what is appended where, once the connection is lost
    bool known = false;                ///< has said hello
    bool leaving = false;              ///< is closed once `out` has been sent
    std::optional<std::string> wants;  ///< the key of a get that waits
    Deadline deadline;                 ///< of that, or of hello
};

/// How many fields a command has.
std::size_t fields_of(Command command) {
    switch (command) {
        case Command::count: return 0;
        case Command::try_get:
        case Command::remove: return 1;
        case Command::compare_set: return 3;
        case Command::hello:
        case Command::set:
        case Command::get:
        case Command::add:
        case Command::append_on_loss: break;
    }
    return 2;
}

}  // namespace

class TcpStoreServer::Impl {
public:
    explicit Impl(const TcpStoreOptions& options) : token_(options.token) {
        if (token_.size() > longest_token)
            throw InvalidArgument(
                fmt::format("TcpStoreServer: a token of {} bytes; at most {} are sent", token_.size(), longest_token));
        if (token_.empty() && !is_loopback(options.host))
            throw InvalidArgument(
                fmt::format("TcpStoreServer: {} can be reached from other machines; set a token that all ranks know "
                            "(LOCKSTEP_STORE_TOKEN)",
                            options.host));
        for (int port = options.port; !listener_; ++port) try {
                listener_ = listen_on(options.host, port);
            } catch (const CommunicationError&) {
                if (port + 1 >= options.port + options.ports) throw;
            }
        port_ = port_of(listener_);
        wake_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (!wake_) throw CommunicationError(fmt::format("store: no event descriptor: {}", text_of(errno)));
        thread_ = std::thread([this] { serve(); });
    }

    ~Impl() {
        const std::uint64_t one = 1;
        while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
        }
        thread_.join();
    }

    int port() const { return port_; }

private:
    void serve() {
        for (;;) {
            std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
            std::optional<Deadline> next;
            for (const Client& client : clients_) {
                const bool full = client.in.size() > limit_of(client) + 4;
                entries.push_back({client.socket.get(),
                                   static_cast<short>((full ? 0 : POLLIN) | (client.out.empty() ? 0 : POLLOUT)), 0});
                if ((client.wants || !client.known) && (!next || client.deadline < *next)) next = client.deadline;
            }
            if (poll(entries.data(), entries.size(), next ? milliseconds_until(*next) : -1) < 0 && errno != EINTR)
                return;
            if (entries[0].revents != 0) return;
            auto entry = entries.begin() + 2;
            for (auto client = clients_.begin(); client != clients_.end(); ++entry) {
                if (attend(*client, entry->revents)) {
                    ++client;
                } else {
                    const Client lost = std::move(*client);
                    client = clients_.erase(client);
                    execute(lost);
                }
            }
            if (entries[1].revents != 0) welcome();
        }
    }

    void execute(const Client& lost) {
        if (lost.will.empty()) return;
        const std::string* lines = keys_.find(lost.will_key);
        const std::string all = (lines ? *lines : std::string()) + lost.will;
        if (all.size() > Store::longest_value) return;
        keys_.set(lost.will_key, all);
        changed(lost.will_key);
    }

    static std::size_t limit_of(const Client& client) { return client.known ? longest_frame : longest_hello; }

    void welcome() {
        for (;;) {
            Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
            if (!socket) return;
            if (clients_.size() >= most_clients) continue;
            Client& client = clients_.emplace_back();
            client.socket = std::move(socket);
            client.deadline = Clock::now() + time_for_hello;
        }
    }

    /// Reads, answers, writes. False when the client has gone or is to go.
    bool attend(Client& client, short events) {
        if ((events & (POLLIN | POLLHUP | POLLERR)) != 0 && !read(client)) return false;
        if (Clock::now() >= client.deadline) {
            if (!client.known) return false;
            if (client.wants) answer(client, Answer::missing, {});
        }
        while (!client.wants && !client.leaving)
            if (!next_frame(client)) break;
        return write_out(client) && !(client.leaving && client.out.empty());
    }

    static bool read(Client& client) {
        char bytes[65536];
        const ssize_t received = recv(client.socket.get(), bytes, sizeof bytes, 0);
        if (received < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
        client.in.append(bytes, static_cast<std::size_t>(received));
        return received > 0;
    }

    static bool write_out(Client& client) {
        while (!client.out.empty()) {
            const ssize_t sent = send(client.socket.get(), client.out.data(), client.out.size(), MSG_NOSIGNAL);
            if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
            client.out.erase(0, static_cast<std::size_t>(sent));
        }
        return true;
    }

    /// Answers what the client has sent; false when no whole frame is there.
    bool next_frame(Client& client) {
        if (client.in.size() < 4) return false;
        const std::size_t size = length_of(client.in);
        if (size == 0 || size > limit_of(client)) {
            refuse(client, "that is no frame of this protocol");
            return false;
        }
        if (client.in.size() < 4 + size) return false;
        const std::optional<Frame> frame = decode(std::string_view(client.in).substr(4, size));
        client.in.erase(0, 4 + size);
        if (!frame)
            refuse(client, "that is no frame of this protocol");
        else if (client.known)
            obey(client, *frame);
        else
            greet(client, *frame);
        return true;
    }

    void greet(Client& client, const Frame& frame) {
        if (static_cast<Command>(frame.kind) != Command::hello || frame.fields.size() != 2 || frame.fields[0] != magic)
            return refuse(client, "this store speaks another protocol");
        if (!same_secret(frame.fields[1], token_)) return refuse(client, "the token is wrong (LOCKSTEP_STORE_TOKEN)");
        client.known = true;
        answer(client, Answer::good, {});
    }

    void obey(Client& client, const Frame& frame) {
        const std::vector<std::string>& fields = frame.fields;
        const auto command = static_cast<Command>(frame.kind);
        const std::size_t wanted = fields_of(command);
        if (fields.size() != wanted || (wanted > 0 && (fields[0].empty() || fields[0].size() > Store::longest_key)))
            return refuse(client, "that is no command of this protocol");
        for (const std::string& field : fields)
            if (field.size() > Store::longest_value) return refuse(client, "a value is too long");
        switch (command) {
            case Command::set:
                keys_.set(fields[0], fields[1]);
                answer(client, Answer::good, {});
                return changed(fields[0]);
            case Command::get: return get(client, fields);
            case Command::try_get: {
                const std::string* value = keys_.find(fields[0]);
                return value ? answer(client, Answer::good, {*value}) : answer(client, Answer::missing, {});
            }
            case Command::add: return add(client, fields);
            case Command::compare_set: {
                const bool stored = keys_.compare_set(fields[0], fields[1], fields[2]);
                const std::string* value = keys_.find(fields[0]);
                answer(client, Answer::good, {value ? std::string_view(*value) : std::string_view()});
                if (stored) changed(fields[0]);
                return;
            }
            case Command::remove: return answer(client, Answer::good, {number(keys_.remove(fields[0]) ? 1 : 0)});
            case Command::count: return answer(client, Answer::good, {number(keys_.count())});
            case Command::append_on_loss:
                client.will_key = fields[0];
                client.will = fields[1];
                return answer(client, Answer::good, {});
            case Command::hello: break;
        }
        refuse(client, "that is no command of this protocol");
    }

    void get(Client& client, const std::vector<std::string>& fields) {
        const std::optional<std::int64_t> milliseconds = number(fields[1]);
        if (!milliseconds) return refuse(client, "that is no command of this protocol");
        if (const std::string* value = keys_.find(fields[0])) return answer(client, Answer::good, {*value});
        constexpr std::int64_t longest = std::int64_t{1} << 40;
        client.wants = fields[0];
        client.deadline = Clock::now() + std::chrono::milliseconds(std::clamp<std::int64_t>(*milliseconds, 0, longest));
    }

    void add(Client& client, const std::vector<std::string>& fields) {
        const std::optional<std::int64_t> amount = number(fields[1]);
        if (!amount) return refuse(client, "that is no command of this protocol");
        const std::optional<std::int64_t> sum = keys_.add(fields[0], *amount);
        if (!sum)
            return answer(client, Answer::refused, {"the key holds no number, or the sum does not fit in 64 bits"});
        answer(client, Answer::good, {number(*sum)});
        changed(fields[0]);
    }

    /// Those who wait for `key` get it.
    void changed(const std::string& key) {
        for (Client& client : clients_)
            if (client.wants == key) {
                answer(client, Answer::good, {*keys_.find(key)});
                write_out(client);
            }
    }

    static void answer(Client& client, Answer kind, const std::vector<std::string_view>& fields) {
        client.out += encode(static_cast<std::uint8_t>(kind), fields);
        client.wants.reset();
    }

    static void refuse(Client& client, std::string_view why) {
        answer(client, Answer::refused, {why});
        client.leaving = true;
        client.in.clear();
    }

    std::string token_;
    Descriptor listener_, wake_;
    int port_ = 0;
    KeyTable keys_;
    std::list<Client> clients_;
    std::thread thread_;
};

TcpStoreServer::TcpStoreServer(const TcpStoreOptions& options) : impl_(std::make_unique<Impl>(options)) {}
TcpStoreServer::~TcpStoreServer() = default;
int TcpStoreServer::port() const { return impl_->port(); }

}  // namespace lockstep
