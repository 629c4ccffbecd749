// A small network for ranks that train rows of their own.
#pragma once

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/runtime/random.h"

namespace two_layers {

namespace ls = lockstep;

struct Net {
    ls::Linear first{6, 5}, second{5, 3};
    LOCKSTEP_MEMBERS(first, second)
    ls::Tensor forward(const ls::Tensor& x) { return second(relu(first(x))); }
};

/// The same on every rank.
inline Net seeded() {
    ls::manual_seed(3);
    return Net{};
}

/// Mean of the squared differences, for rows that lie anywhere.
inline ls::Tensor loss_of(const ls::Tensor& output, const ls::Tensor& target) {
    const ls::Tensor difference = output - target.to(output.device());
    return sum(difference * difference) * (1.0 / static_cast<double>(target.numel()));
}

}  // namespace two_layers
