// Every operation of a transport, with inputs whose results are exact, checked for equality against plain loops: what
// all backends must pass.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep::testing {

/// Called on all ranks of a transport at once. What was wrong, a line each; stops after the first dozen. A
/// TransportError ends it and is one of the lines.
std::vector<std::string> exercise_transport(Transport& transport, int rank, int size);

}  // namespace lockstep::testing
