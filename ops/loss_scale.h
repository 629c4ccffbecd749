// The state of a GradScaler, on devices and on the host.
#pragma once

#include <cstdint>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// State of a GradScaler.
struct LossScale {
    double scale = 65536;         ///< rounded to f32 after every change, as in PyTorch
    std::int64_t good_steps = 0;  ///< good steps since the last change: PyTorch's growth tracker
};

}  // namespace lockstep
