// Python's pickles, as far as torch.save uses them for state_dicts.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/parallel/data/pth/pickle_values.h"

namespace lockstep::internal {

struct Unpickled {
    PickleValues values;
    PickleIndex root;
    std::uint64_t offset;  ///< start of the pickle in the file
};

/// The objects that `pickle` describes, in protocols 2 to 5. Nothing that the file names is ever executed: functions
/// that create tensors, their parts and dictionaries are known, and the results of other functions are objects with
/// only a name. Throws DataError if it is damaged or exceeds 100 MB, 10 million values or 100 open brackets; `file` and
/// `offset` are for messages. Time and memory are proportional to its length.
Unpickled unpickle(std::string pickle, const std::string& file, std::uint64_t offset);

}  // namespace lockstep::internal
