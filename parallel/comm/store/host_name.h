// Hosts and ports as people write them.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// The host that `text` names, for getaddrinfo: without blanks around it, the brackets of an IPv6 address and the dot
/// at the end of a complete name. `what` says where it was given ("MASTER_ADDR"). Throws InvalidArgument for an empty
/// host, blanks inside, characters that no host has and a port after it.
std::string host_of(std::string_view text, std::string_view what);

}  // namespace lockstep
