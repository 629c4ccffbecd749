// Which shapes functions demand of their tensors, with messages that name the function and the shapes. Dtypes and
// devices: prologue.h.
#pragma once

#include "lockstep/runtime/tensor.h"

namespace lockstep::checks {

/// Throws InvalidArgument unless `tensor` has as many dimensions as `layout` names: "(N, C, H, W)".
void dims(const char* operation, const char* argument, const Tensor& tensor, int count, const char* layout);
/// Throws InvalidArgument unless `tensor` is undefined or of shape (`size`).
void vector_of(const char* operation, const char* argument, const Tensor& tensor, std::int64_t size, const char* what);

}  // namespace lockstep::checks

namespace lockstep {

/// A fresh tensor shaped as `tensor`, with its dtype and batch tag.
inline TensorMeta like(const Tensor& tensor) {
    return TensorMeta::contiguous(tensor.dtype(), tensor.shape(), tensor.is_batch());
}
/// A fresh tensor of `shape` with the dtype of `tensor`.
inline TensorMeta shaped(const Tensor& tensor, const Shape& shape, bool batch = false) {
    return TensorMeta::contiguous(tensor.dtype(), shape, batch);
}

/// `tensor` with the batch tag as said.
inline Tensor tagged(const Tensor& tensor, bool batch) {
    return tensor.is_batch() == batch ? tensor : tensor.tag_batch(batch);
}

}  // namespace lockstep
