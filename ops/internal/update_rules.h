// All rules that have update kernels. To add one: its header and its name in the list.
#pragma once

#include <cstddef>
#include <tuple>

#include "lockstep/ops/adadelta.h"
#include "lockstep/ops/adagrad.h"
#include "lockstep/ops/adam.h"
#include "lockstep/ops/adamax.h"
#include "lockstep/ops/asgd.h"
#include "lockstep/ops/lamb.h"
#include "lockstep/ops/lars.h"
#include "lockstep/ops/nadam.h"
#include "lockstep/ops/radam.h"
#include "lockstep/ops/rmsprop.h"
#include "lockstep/ops/rprop.h"
#include "lockstep/ops/sgd.h"

namespace lockstep {

using UpdateRules = std::tuple<SgdRule, AdamRule, AdamWRule, RmspropRule, AdagradRule, AdadeltaRule, AdamaxRule,
                               RAdamRule, NAdamRule, RpropRule, AsgdRule, LarsRule, LambRule>;

/// Maximum number of states of a rule.
constexpr std::size_t max_states = 3;

}  // namespace lockstep
