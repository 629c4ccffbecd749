// The state of a GradScaler, as it lies on devices and on the host.
#pragma once

#include <cstdint>

namespace lockstep {

struct LossScale {
    double scale = 65536;         ///< rounded to f32 whenever it changes, as PyTorch's is
    std::int64_t good_steps = 0;  ///< since it changed: PyTorch's growth tracker
};

}  // namespace lockstep
