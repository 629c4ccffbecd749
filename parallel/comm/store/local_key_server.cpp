#include "lockstep/parallel/comm/store/local_key_server.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <utility>

#include "lockstep/parallel/comm/store/store_protocol.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

constexpr std::size_t key_size = 32;
/// Limit per call, so that the server's clients are served as well.
constexpr int max_at_once = 64;

struct Address {
    sockaddr_un name{};
    socklen_t size = 0;
};

/// An abstract name: it belongs to the network namespace, as loopback does, and vanishes with the socket.
Address address_of(int port) {
    Address address;
    address.name.sun_family = AF_UNIX;
    const std::string text = fmt::format("lockstep-store-{}", port);
    std::copy(text.begin(), text.end(), address.name.sun_path + 1);
    address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
    return address;
}

const sockaddr* generic(const Address& address) { return reinterpret_cast<const sockaddr*>(&address.name); }

Descriptor local_socket() { return Descriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

/// Whether `user` is the number that stands for all users unknown to this user namespace.
bool stands_for_strangers(uid_t user) {
    uid_t overflow = 65534;
    std::ifstream("/proc/sys/kernel/overflowuid") >> overflow;
    if (user != overflow) return false;
    std::uint32_t inside = 0, outside = 0, count = 0;
    std::ifstream("/proc/self/uid_map") >> inside >> outside >> count;
    return count != std::numeric_limits<std::uint32_t>::max();  // some users are unknown
}

/// Nullopt if the kernel does not report it.
std::optional<uid_t> peer_user(const Descriptor& socket) {
    ucred peer{};
    socklen_t size = sizeof peer;
    if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || stands_for_strangers(peer.uid))
        return std::nullopt;
    return peer.uid;
}

}  // namespace

LocalKeyServer::LocalKeyServer(int port) : listener_(local_socket()), key_(handshake::random_bytes(key_size)) {
    const Address address = address_of(port);
    if (!listener_ || bind(listener_.get(), generic(address), address.size) != 0 ||
        listen(listener_.get(), SOMAXCONN) != 0)
        throw CommunicationError(
            fmt::format("store: port {} of this machine cannot be reserved for processes of this user: {}; choose "
                        "another port, or set LOCKSTEP_STORE_TOKEN to the same secret for all ranks",
                        port, text_of(errno)));
}

int LocalKeyServer::serve() const {
    for (int i = 0; i < max_at_once; ++i) {
        const Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket) return errno == EAGAIN || errno == ECONNABORTED || errno == EINTR ? 0 : errno;
        // the key fits into the socket's buffer, so this does not block
        if (peer_user(socket) == geteuid()) send(socket.get(), key_.data(), key_.size(), MSG_NOSIGNAL);
    }
    return 0;
}

KeyReply fetch_key(int port, Deadline deadline) {
    const auto no_answer = [port](const std::string& why) {
        return CommunicationError(
            fmt::format("the store at port {} of this machine does not admit processes of its user: {}", port, why));
    };
    const Descriptor socket = local_socket();
    if (!socket) throw no_answer(text_of(errno));
    const Address address = address_of(port);
    if (connect(socket.get(), generic(address), address.size) != 0) {
        if (errno == ECONNREFUSED) return {};
        throw no_answer(text_of(errno));
    }
    const std::optional<uid_t> owner = peer_user(socket);
    if (owner != geteuid())
        return {{},
                fmt::format("the store at port {} of this machine belongs to user {}, this process to user {}; choose "
                            "another port, or set LOCKSTEP_STORE_TOKEN to the same secret for all ranks",
                            port, owner ? std::to_string(*owner) : "unknown", geteuid())};
    std::string key(key_size, '\0');
    if (const std::string failure = receive_all(socket, key.data(), key.size(), deadline); !failure.empty())
        throw no_answer(failure);
    return {std::move(key), {}};
}

}  // namespace lockstep
