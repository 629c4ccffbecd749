// Small helpers on operands.
#pragma once

#include "lockstep/runtime/record.h"

namespace lockstep {

/// Address of the operand's first element. Throws for a place in a trace.
inline void* first_element(const Operand& operand) {
    return static_cast<char*>(operand.buffer->data()) +
           static_cast<std::size_t>(operand.meta.offset) * size_of(operand.meta.dtype);
}

}  // namespace lockstep
