// All rules that have update kernels. To add one: its header and its name in the list.
#pragma once

#include <cstddef>
#include <tuple>

#include "lockstep/ops/adagrad.h"
#include "lockstep/ops/adam.h"
#include "lockstep/ops/rmsprop.h"
#include "lockstep/ops/sgd.h"

namespace lockstep {

using UpdateRules = std::tuple<SgdRule, AdamRule, AdamWRule, RmspropRule, AdagradRule>;

/// The most states that a rule may have.
constexpr std::size_t most_states = 3;

}  // namespace lockstep
