// Operands that are broadcast together, and their gradients.
#pragma once

#include "lockstep/ops/internal/checked_args.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Meta of what the operands of function `name` broadcast to, tagged as a batch if its dimension 0 is that of a tagged
/// operand. Throws InvalidArgument.
inline TensorMeta broadcast_meta(const char* name, DType dtype, TensorList operands) {
    Shape shape = operands[0].shape();
    for (const Tensor& operand : operands) shape = broadcast_shapes(shape, operand.shape(), name);
    bool batch = false;
    for (const Tensor& operand : operands)
        batch = batch || (operand.is_batch() && operand.dims() == shape.dims() && operand.size(0) == shape[0]);
    return TensorMeta::contiguous(dtype, shape, batch);
}

/// Shape and batch tag of a broadcast operand, for its gradient.
struct Origin {
    explicit Origin(const Tensor& tensor)
        : shape(tensor.shape()), batch(tensor.is_batch()), wanted(tensor.requires_grad()) {}
    /// `gradient` summed down to the operand's shape.
    Tensor reduce(const Tensor& gradient) const { return tagged(reduce_to(gradient, shape), batch); }
    Shape shape;
    bool batch;
    bool wanted;
};

}  // namespace lockstep
