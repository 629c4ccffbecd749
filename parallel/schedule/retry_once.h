// Calls that must succeed because the step is decided already.
#pragma once

#include "lockstep/runtime/error.h"

namespace lockstep {

/// Makes a call to a device, and makes it once more where it throws: it has done nothing then. `call` may consist of
/// several such calls only if those that succeeded may be repeated.
template <class Call>
void retry_once(Call&& call) {
    try {
        call();
    } catch (const DeviceError&) {
        call();
    }
}

}  // namespace lockstep
