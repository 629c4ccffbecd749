// What the functions that a pickle may call make of their arguments.
#pragma once

#include <stdexcept>

#include "lockstep/parallel/data/pth/globals.h"
#include "lockstep/parallel/data/pth/pickle_values.h"

namespace lockstep::internal {

/// What is wrong with a pickle; who runs it knows the file and the place.
class PickleFault : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// What the global `function` would make of the tuple `arguments`; an object whose content is not read, if it is
/// unknown. Throws PickleFault for arguments that PyTorch does not give it, and for tensors that reach out of their
/// storage.
PickleIndex call_global(PickleValues& values, PickleIndex function, PickleIndex arguments);

/// The storage that a persistent id means: ("storage", type, record, device, number of elements). Throws PickleFault
/// for another one.
PickleIndex storage_of_id(PickleValues& values, PickleIndex id);

}  // namespace lockstep::internal
