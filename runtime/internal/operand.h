// Where the elements of operands and tensors begin.
#pragma once

#include "lockstep/runtime/record.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Address of the operand's first element. Throws for a place in a trace.
inline void* first_element(const Operand& operand) {
    return static_cast<char*>(operand.buffer->data()) +
           static_cast<std::size_t>(operand.meta.offset) * size_of(operand.meta.dtype);
}
/// Likewise of a strided tensor.
inline void* first_element(const Tensor& tensor) {
    return static_cast<char*>(tensor.impl()->storage->buffer->data()) +
           static_cast<std::size_t>(tensor.impl()->meta.offset) * size_of(tensor.dtype());
}

}  // namespace lockstep
