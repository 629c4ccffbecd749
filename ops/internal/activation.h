// Functions that an operation can put on its own result while that is at hand.
#pragma once

#include <cstdint>

namespace lockstep {

/// An attribute of operations. Bits are those of the operation and the function one after the other.
enum class Activation : std::uint8_t { none, relu };

}  // namespace lockstep
