// What a file of torch.save holds, as those who read it see it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/runtime/dtype.h"

namespace lockstep {

/// One tensor of a file, as it is once it was read: dense and row-major. `bytes` may be more than the file has: an
/// expanded tensor is stored once.
struct PthEntry {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
    std::uint64_t bytes = 0;
};

}  // namespace lockstep
