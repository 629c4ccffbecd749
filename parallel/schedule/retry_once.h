// What is decided must go through.
#pragma once

#include "lockstep/runtime/error.h"

namespace lockstep {

/// A call of a device's that fails, and so has done nothing, is made once more. Several calls at once are for this only
/// where those that went well may be made again.
template <class Call>
void retry_once(Call&& call) {
    try {
        call();
    } catch (const DeviceError&) {
        call();
    }
}

}  // namespace lockstep
