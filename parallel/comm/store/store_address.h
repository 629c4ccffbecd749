// Valid addresses of a store and its server.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/parallel/comm/store/host_name.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

/// `options` with the host as `host_of` returns it. Throws InvalidArgument for ports that do not exist. `least`: the
/// lowest port that `what` accepts.
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
