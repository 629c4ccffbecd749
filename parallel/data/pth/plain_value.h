// Values of a pickle as those who read a file see them.
#pragma once

#include <string>

#include "lockstep/parallel/data/pth/pickle_values.h"
#include "lockstep/parallel/data/pth_types.h"

namespace lockstep::internal {

/// Throws DataError, naming `file`, if it has more than a million parts or 100 levels: a small pickle can describe a
/// value without end.
PthValue plain_value(const PickleValues& values, PickleIndex index, const std::string& file);

}  // namespace lockstep::internal
