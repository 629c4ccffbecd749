// Reductions and checks that losses of elements share.
#pragma once

#include <cstdint>

#include "lockstep/ops/loss.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// A loss of `dtype` from the losses of `count` elements or rows, or from their sum. 16-bit numbers are added in f32,
/// because sums over large batches would overflow.
Loss reduced(const Tensor& e, std::int64_t count, Reduction reduction, DType dtype);

/// Cross entropy of every position with a probability of every class as the target; 16-bit numbers as f32.
Tensor cross_entropies_of_probabilities(const Tensor& input, const Tensor& target, const CrossEntropyOptions& options);

/// Throws InvalidArgument unless `weight` is undefined, or a constant that broadcasts over the rows of `x` without
/// dimension 0. `what`: its name in messages.
void require_row_weights(const char* name, const char* what, const Tensor& weight, const Tensor& x);

}  // namespace lockstep
