// Waiting for devices without asking what they have found.
#pragma once

namespace lockstep {

/// Blocks the host until every stream of every device is empty; throws the first failure found.
void rest_all_streams();

}  // namespace lockstep
