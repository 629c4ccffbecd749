// Gradients of parameters as flat tensors, for functions that process all of them outside of a step.
#pragma once

#include <vector>

#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// A gradient as a contiguous tensor of one dimension.
struct FlatGradient {
    Tensor elements;
    GradientRange range;
};

/// The gradients of the parameters that have one; a gradient that is not contiguous is replaced by one that is.
std::vector<FlatGradient> flat_gradients(const std::vector<Tensor>& parameters);

/// The norm of all elements together, a scalar of f64 on the device of the first gradient; 0 on the host if there are
/// no gradients.
Tensor norm_of_gradients(const std::vector<FlatGradient>& gradients, double order);

/// Multiplies all elements by `factor`, a scalar of f64, which is copied to other devices if necessary.
void scale_gradients(const std::vector<FlatGradient>& gradients, const Tensor& factor);

}  // namespace lockstep
