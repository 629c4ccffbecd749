// How storage lies: turning opaque storage into strided storage, elements that share memory.
#pragma once

#include <string_view>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Brings the storage of `tensor` into row-major order if a backend keeps it in a layout of its own. All aliases see
/// it; values, version and autograd graph stay.
void make_strided(const Tensor& tensor);

/// Several elements share memory: an expanded view.
bool repeats_elements(const TensorMeta& meta);
/// Throws InvalidArgument, in the name of `what`, when that is true of a tensor that is to be written.
void require_single_elements(const Tensor& written, std::string_view what);

}  // namespace lockstep
