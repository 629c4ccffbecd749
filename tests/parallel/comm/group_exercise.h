// Every operation of a ProcessGroup on tensors, with inputs whose results are exact, checked for equality against plain
// loops: the behaviour that every backend must have.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::test {

/// Must be called on all ranks of a group at once, with tensors on the host and on `device`. Returns the errors, one
/// per line; stops after the first dozen.
std::vector<std::string> exercise_group(ProcessGroup& group, Device device = Device::cpu(0));
/// The same for messages, which require two ranks or more.
std::vector<std::string> exercise_group_messages(ProcessGroup& group, Device device = Device::cpu(0));

}  // namespace lockstep::test
