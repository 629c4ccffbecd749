// Calls that must succeed because the step is already decided.
#pragma once

#include "lockstep/runtime/error.h"

namespace lockstep {

/// Makes a call to a device, and retries it once if it throws, since a failed call has had no effect. `call` may
/// consist of several such calls only if those that succeeded may be repeated.
template <class Call>
void retry_once(Call&& call) {
    try {
        call();
    } catch (const DeviceError&) {
        call();
    }
}

}  // namespace lockstep
