// Memory that other libraries share with tensors, without copies: from_blob for any memory, and DLPack for tensors of
// NumPy, PyTorch, CuPy and others.
#pragma once

#include <functional>
#include <optional>
#include <type_traits>

#include "lockstep/runtime/device.h"
#include "lockstep/runtime/dtype.h"
#include "lockstep/runtime/shape.h"
#include "lockstep/runtime/tensor.h"

struct DLManagedTensor;  // defined in dlpack/dlpack.h, in every version

namespace lockstep {

/// Options of from_blob.
struct BlobOptions {
    /// Device that has the memory: that of a pointer from cudaMalloc is a CUDA device, that of std::vector is the host.
    Device device = {};
    /// In elements, each 0 or more, one per dimension; default: row-major.
    std::optional<Shape> strides = {};
    /// Called once with the memory's address when the last tensor that shares the memory has been destroyed and the
    /// devices have finished their work on it; the destructor of that tensor waits for this work. It may be called by
    /// any thread that destroys tensors. An exception from it is logged as a warning.
    std::function<void(void*)> deleter = {};
};

/// A tensor over memory of the caller: both see what the other writes. Without a deleter, the memory must outlive all
/// tensors that share it. Writes of others are not counted by Tensor::version(), so autograd does not notice them.
/// Throws InvalidArgument, without calling the deleter, for a negative size or stride, another number of strides than
/// of sizes, a null pointer to elements, an address that is not a multiple of the element size, and a device that does
/// not exist. torch::from_blob.
Tensor from_blob(void* data, DType dtype, const Shape& shape, const BlobOptions& options = {});
template <class T>
requires has_dtype<T> Tensor from_blob(T* data, const Shape& shape, const BlobOptions& options = {}) {
    return from_blob(static_cast<void*>(data), dtype_of<T>, shape, options);
}

/// A tensor over the memory of a DLPack tensor in host, CUDA, pinned or managed memory. Takes ownership: calls its
/// deleter as from_blob does. Throws InvalidArgument, with ownership left to the caller, for a null pointer, a dtype, a
/// number of dimensions or a device that Lockstep does not have, several lanes, negative strides (a reversed NumPy
/// array: copy it first) and a misaligned address. The producer's work on the memory must be complete.
/// torch.from_dlpack.
Tensor from_dlpack(DLManagedTensor* source);

/// A DLPack tensor over the memory of `tensor`, which the caller owns: its deleter must be called once, by any thread.
/// Blocks until the values are computed and throws their errors. Bool has DLPack's code 6 (of version 0.8). Throws
/// InvalidArgument for an undefined tensor, one that requires a gradient (use detach()), and one without a value (in a
/// trace). torch.utils.dlpack.to_dlpack.
DLManagedTensor* to_dlpack(const Tensor& tensor);

}  // namespace lockstep
