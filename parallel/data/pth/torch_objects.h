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

/// The result of calling `function`, one of find_global's, with the tuple `arguments`. Throws PickleFault when they are
/// not what PyTorch gives it, and for tensors that reach out of their storage.
PickleIndex call_global(PickleValues& values, PickleValue function, PickleValue arguments);

/// The storage that a persistent id means: ("storage", type, record, device, number of elements). Throws PickleFault
/// for another one.
PickleIndex storage_of_id(PickleValues& values, PickleValue id);

}  // namespace lockstep::internal
