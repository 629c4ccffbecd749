// The error for an unreadable file of torch.save.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/runtime/error.h"

namespace lockstep::internal {

[[noreturn]] inline void refuse_pth(const std::string& file, std::uint64_t offset, const std::string& what) {
    throw DataError(file + ": offset " + std::to_string(offset) + ": " + what +
                    "; not a valid file of torch.save (truncated or corrupt)");
}

}  // namespace lockstep::internal
