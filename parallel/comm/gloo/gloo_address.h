// Selection of this host's address that the other ranks of a group can reach.
#pragma once

#include <gloo/transport/tcp/attr.h>

#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep {

/// Loopback if all ranks are on this host. Otherwise the address of the interface LOCKSTEP_GLOO_INTERFACE or
/// GLOO_SOCKET_IFNAME, the one that this host uses towards `info.master_addr`, or the one to which its name resolves.
/// All ranks must call it. Throws TransportError, and the errors of the store.
gloo::transport::tcp::attr gloo_address(const GroupInfo& info, Deadline deadline);

}  // namespace lockstep
