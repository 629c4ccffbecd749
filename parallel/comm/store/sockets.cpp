#include "lockstep/parallel/comm/store/sockets.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <system_error>
#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

constexpr std::string_view connection_closed = "the other side has closed the connection";

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses addresses_of(const std::string& host, int port, bool passive) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
    addrinfo* found = nullptr;
    const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (status != 0)
        throw CommunicationError(
            fmt::format("the address of '{}' is not known ({}); expected a host name or an IP address", host,
                        gai_strerror(status)));
    return {found, &freeaddrinfo};
}

Descriptor open_socket(const addrinfo& address, int flags) {
    Descriptor socket(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | flags, address.ai_protocol));
    return socket;
}

/// A socket bound to `address`, whose port other processes may hold or may have just released.
Descriptor bind_to(const addrinfo& address) {
    Descriptor socket = open_socket(address, SOCK_NONBLOCK);
    const int on = 1;
    if (!socket || setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(socket.get(), address.ai_addr, address.ai_addrlen) != 0)
        return {};
    return socket;
}

void without_delay(const Descriptor& socket) {
    const int on = 1;
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Whether the system gave it the very port that it was to reach, on which no process listens, so that it has connected
/// to itself.
bool is_connected_to_itself(const Descriptor& socket) {
    sockaddr_storage own{}, other{};
    socklen_t own_size = sizeof own, other_size = sizeof other;
    return getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
           getpeername(socket.get(), reinterpret_cast<sockaddr*>(&other), &other_size) == 0 && own_size == other_size &&
           std::memcmp(&own, &other, own_size) == 0;
}

/// One attempt. Returns the socket, or the error.
std::pair<Descriptor, std::string> try_to_connect(const addrinfo& address, Deadline deadline) {
    Descriptor socket = open_socket(address, SOCK_NONBLOCK);
    if (!socket) return {Descriptor(), text_of(errno)};
    if (connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
        if (errno != EINPROGRESS) return {Descriptor(), text_of(errno)};
        std::string failure = wait_for(socket, POLLOUT, deadline);
        if (!failure.empty()) return {Descriptor(), std::move(failure)};
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
        if (error != 0) return {Descriptor(), text_of(error)};
    }
    if (is_connected_to_itself(socket)) return {Descriptor(), text_of(ECONNREFUSED)};
    without_delay(socket);
    return {std::move(socket), std::string()};
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
    if (this != &other) {
        reset();
        value_ = other.release();
    }
    return *this;
}

void Descriptor::reset() noexcept {
    if (value_ >= 0) close(value_);
    value_ = -1;
}

int Descriptor::release() noexcept { return std::exchange(value_, -1); }

std::string text_of(int error) {
    const std::string text = std::generic_category().message(error);
    if (error == EMFILE) return text + " (raise the limit of this process, ulimit -n)";
    if (error == ENFILE) return text + " (the machine's limit is fs.file-max)";
    return text;
}

Descriptor listen_on(const std::string& host, int port) {
    const Addresses addresses = addresses_of(host, port, true);
    std::string failure;
    for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
        Descriptor socket = bind_to(*address);
        if (socket && listen(socket.get(), SOMAXCONN) == 0) return socket;
        failure = text_of(errno);
    }
    throw CommunicationError(fmt::format(
        "cannot listen on {}:{}: {}; expected a free port, or 0, and an address of this machine", host, port, failure));
}

Descriptor hold_free_port() {
    Descriptor socket = bind_to(*addresses_of("127.0.0.1", 0, true));
    if (!socket) throw CommunicationError(fmt::format("no free port on 127.0.0.1: {}", text_of(errno)));
    return socket;
}

int port_of(const Descriptor& socket) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
    return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                               : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

bool is_loopback(const std::string& host) {
    const Addresses addresses = addresses_of(host, 0, false);
    for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
        if (address->ai_family == AF_INET) {
            const auto& v4 = reinterpret_cast<const sockaddr_in&>(*address->ai_addr);
            if (ntohl(v4.sin_addr.s_addr) >> 24 != 127) return false;
        } else {
            const auto& v6 = reinterpret_cast<const sockaddr_in6&>(*address->ai_addr);
            if (!IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr)) return false;
        }
    }
    return true;
}

Descriptor connect_to(const std::string& host, int port, Deadline deadline) {
    const Addresses addresses = addresses_of(host, port, false);
    std::string failure;
    bool refused = true;
    for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
        auto [socket, why] = try_to_connect(*address, deadline);
        if (socket) return std::move(socket);
        refused = refused && why == text_of(ECONNREFUSED);
        failure = std::move(why);
    }
    const std::string text = fmt::format(
        "cannot reach {}:{}: {}; expected the process of rank 0 at this address and port", host, port, failure);
    if (refused) throw ConnectionRefused(text);
    throw CommunicationError(text);
}

std::string wait_for(const Descriptor& socket, short events, Deadline deadline) {
    for (;;) {
        pollfd entry{socket.get(), events, 0};
        const int ready = poll(&entry, 1, poll_time(deadline));
        if (ready > 0) return {};
        if (ready == 0 && RunClock::now() >= deadline) return "no answer within the time limit";
        if (ready < 0 && errno != EINTR) return text_of(errno);
    }
}

std::string send_all(const Descriptor& socket, std::string_view bytes, Deadline deadline) {
    while (!bytes.empty()) {
        const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            bytes.remove_prefix(static_cast<std::size_t>(sent));
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            std::string failure = wait_for(socket, POLLOUT, deadline);
            if (!failure.empty()) return failure;
        } else if (errno != EINTR) {
            return text_of(errno);
        }
    }
    return {};
}

std::string receive_all(const Descriptor& socket, char* to, std::size_t size, Deadline deadline) {
    while (size > 0) {
        const ssize_t received = recv(socket.get(), to, size, MSG_DONTWAIT);
        if (received > 0) {
            to += received;
            size -= static_cast<std::size_t>(received);
        } else if (received == 0) {
            return std::string(connection_closed);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            std::string failure = wait_for(socket, POLLIN, deadline);
            if (!failure.empty()) return failure;
        } else if (errno != EINTR) {
            return text_of(errno);
        }
    }
    return {};
}

bool is_end_of_connection(std::string_view failure) {
    return failure == connection_closed || failure == text_of(ECONNRESET) || failure == text_of(EPIPE);
}

}  // namespace lockstep
