// Where the elements of operands and tensors begin.
#pragma once

#include <string_view>

#include "lockstep/runtime/record.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Address of the operand's first element. Throws for a buffer of a trace.
inline void* first_element(const Operand& operand) {
    return static_cast<char*>(operand.buffer->data()) +
           static_cast<std::size_t>(operand.meta.offset) * size_of(operand.meta.dtype);
}
/// Likewise of a strided tensor.
inline void* first_element(const Tensor& tensor) {
    return static_cast<char*>(tensor.impl()->storage->buffer->data()) +
           static_cast<std::size_t>(tensor.impl()->meta.offset) * size_of(tensor.dtype());
}

/// Throws InvalidArgument for `call` (empty: nobody knows which), which wants the value of a tensor of a traced
/// forward: inside of that there is none yet, outside there never is one.
[[noreturn]] void throw_without_value(std::string_view call, std::string_view what = "a tensor");

}  // namespace lockstep
