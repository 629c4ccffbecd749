// Checks of layers' arguments, and initial values of their parameters.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/module.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// Throws InvalidArgument unless the value is positive.
void require_positive(const char* layer, const char* argument, std::int64_t value);
/// Throws InvalidArgument unless both values are at least `least`.
void require_pair(const char* layer, const char* argument, Pair value, int least);
/// Throws InvalidArgument unless `groups` is positive and divides both numbers of channels.
void require_groups(const char* layer, std::int64_t in, std::int64_t out, std::int64_t groups);
/// The probability. Throws InvalidArgument unless it is in [0, 1].
double require_probability(const char* layer, double p);

/// f32 numbers on the host from U(-bound, bound), drawn from manual_seed's generator.
Tensor uniform_values(const Shape& shape, double bound);

template <class T>
Tensor value_or_none(const std::optional<T>& member) {
    return member ? member->tensor() : Tensor();
}

}  // namespace lockstep
