// Every operation of a transport, with inputs whose results are exact, checked for equality against plain loops: the
// behaviour that every backend must have.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/group/transport.h"

namespace lockstep::test {

/// Must be called on all ranks of a transport at once. Returns the errors, one per line; stops after the first dozen. A
/// TransportError ends it and is one of the lines.
std::vector<std::string> exercise_transport(Transport& transport, int rank, int size);

}  // namespace lockstep::test
