// Dependence between records.
#pragma once

#include "lockstep/runtime/record.h"

namespace lockstep {

/// Whether the order of two records matters: one of them writes memory that the other one reads or writes.
bool depend(const Record& a, const Record& b);

}  // namespace lockstep
