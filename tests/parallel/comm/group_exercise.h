// Every operation of a ProcessGroup on tensors, with inputs whose results are exact, checked for equality against plain
// loops: what must hold on every backend.
#pragma once

#include <string>
#include <vector>

#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::testing {

/// Called on all ranks of a group at once, with tensors on the host and on `device`. What was wrong, a line each; stops
/// after the first dozen.
std::vector<std::string> exercise_group(ProcessGroup& group, Device device = Device::cpu(0));
/// The same for messages, which want two ranks or more.
std::vector<std::string> exercise_group_messages(ProcessGroup& group, Device device = Device::cpu(0));

}  // namespace lockstep::testing
