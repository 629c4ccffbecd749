// Addresses of a store and its server: hosts and ports as users write them.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

// Hosts and ports as users write them.

/// The host that `text` names, for getaddrinfo: without surrounding blanks, the brackets of an IPv6 address and the dot
/// at the end of a complete name. `what`: name of the source ("MASTER_ADDR"). Throws InvalidArgument for an empty host,
/// blanks inside, invalid characters and a port after it.
std::string host_of(std::string_view text, std::string_view what);
/// The host that MASTER_ADDR names, or nullopt if it is unset or empty. Throws InvalidEnvironment as `host_of` throws.
std::optional<std::string> master_addr_of_environment();

/// `options` with the host as `host_of` returns it. Throws InvalidArgument for invalid ports. `least`: the lowest port
/// that `what` accepts.
inline TcpStoreOptions sound(std::string_view what, TcpStoreOptions options, int least) {
    constexpr int last_port = 65535;
    options.host = host_of(options.host, fmt::format("{}: host", what));
    if (options.port < least || options.port > last_port)
        throw InvalidArgument(fmt::format("{}: port {}; expected {} to {}", what, options.port, least, last_port));
    if (options.ports < 1 || options.ports - 1 > last_port - options.port)
        throw InvalidArgument(fmt::format("{}: {} ports from {} on; expected 1 to {}", what, options.ports,
                                          options.port, last_port - options.port + 1));
    return options;
}

}  // namespace lockstep
