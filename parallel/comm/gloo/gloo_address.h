// Selection of this host's address that the other ranks of a group can reach.
#pragma once

#include <gloo/transport/tcp/attr.h>

#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep {

/// Loopback when all ranks are on this host. Else that of the interface LOCKSTEP_GLOO_INTERFACE or GLOO_SOCKET_IFNAME,
/// the one that this host uses towards `info.master_addr`, or the one that its name stands for. All ranks have to
/// call it. Throws TransportError, and what the store throws.
gloo::transport::tcp::attr gloo_address(const GroupInfo& info, Deadline deadline);

}  // namespace lockstep
