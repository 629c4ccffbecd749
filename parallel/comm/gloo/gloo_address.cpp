#include "lockstep/parallel/comm/gloo/gloo_address.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>

#include "lockstep/parallel/comm/group/host_identity.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

bool all_here(const GroupInfo& info, Deadline deadline) {
    const std::string own = host_identity(HostScope::network, info.rank);
    bool all = true;
    info.store->set(fmt::format("loopback/{}", info.rank), own);
    for (int r = 0; r < info.size; ++r) {
        try {
            all = entry_of(info, "loopback", r, deadline) == own && all;
        } catch (const CommunicationError& error) {
            throw TransportError(fmt::format("waited for rank {}: {}", r, error.what()));
        }
    }
    return all;
}

/// The address from which this host would send to `host`; empty if none is found.
std::string address_towards(const std::string& host) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return {};
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
    std::string result;
    for (const addrinfo* one = found; one != nullptr && result.empty(); one = one->ai_next) {
        const Descriptor socket(::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        sockaddr_storage local{};
        socklen_t length = sizeof local;
        std::array<char, NI_MAXHOST> text{};
        if (socket && ::connect(socket.get(), one->ai_addr, one->ai_addrlen) == 0 &&
            ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local), &length) == 0 &&
            ::getnameinfo(reinterpret_cast<sockaddr*>(&local), length, text.data(), text.size(), nullptr, 0,
                          NI_NUMERICHOST) == 0)
            result = text.data();
    }
    return result;
}

std::string host_name() {
    std::array<char, 256> name{};
    return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace

gloo::transport::tcp::attr gloo_address(const GroupInfo& info, Deadline deadline) {
    gloo::transport::tcp::attr result;
    if (all_here(info, deadline)) {
        result.hostname = "127.0.0.1";
        return result;
    }
    for (const char* variable : {"LOCKSTEP_GLOO_INTERFACE", "GLOO_SOCKET_IFNAME"}) {
        const char* name = std::getenv(variable);
        if (name == nullptr || *name == 0) continue;
        result.iface = name;
        return result;
    }
    for (const std::string& host : {info.master_addr, host_name()}) {
        const std::string address = host.empty() ? std::string() : address_towards(host);
        if (address.empty() || is_loopback(address)) continue;
        result.hostname = address;
        return result;
    }
    if (host_identity(HostScope::network).empty())
        throw TransportError(
            "/proc does not identify this host, so this rank counts as a separate host; mount /proc, or set "
            "LOCKSTEP_GLOO_INTERFACE to the network interface of the ranks (lo if all are on this host)");
    throw TransportError(
        "the ranks are on several hosts, but the name of this host has no address that others can reach; set "
        "LOCKSTEP_GLOO_INTERFACE to the name of a network interface");
}

}  // namespace lockstep
