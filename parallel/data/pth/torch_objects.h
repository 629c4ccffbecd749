// Results of the functions that a pickle may call.
#pragma once

#include <stdexcept>

#include "lockstep/parallel/data/pth/pickle_values.h"
#include "lockstep/parallel/data/pth/torch_types.h"

namespace lockstep::internal {

/// An error in a pickle, without file and position, which the caller adds.
class PickleFault : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// The result of the global `function` for the tuple `arguments`; an object whose content is not read, if the function
/// is unknown. Throws PickleFault for arguments that PyTorch does not use, and for tensors that exceed their storage.
PickleIndex call_global(PickleValues& values, PickleIndex function, PickleIndex arguments);

/// The storage for a persistent id: ("storage", type, record, device, number of elements). Throws PickleFault for any
/// other id.
PickleIndex storage_of_id(PickleValues& values, PickleIndex id);

}  // namespace lockstep::internal
