// Python's pickles, as far as torch.save makes state_dicts of them.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/parallel/data/pth/pickle_values.h"

namespace lockstep::internal {

struct Unpickled {
    PickleValues values;
    PickleIndex root;
};

/// What `pickle` describes, in protocols 2 to 5. It can name tensors, their types, parts and sizes, and ordered
/// dictionaries; the functions that make them stand for these here, and nothing that the file holds is ever run. Throws
/// DataError, naming what is asked for, where it names anything else, and where it is damaged or more than 100 MB,
/// 10 million values or 100 open brackets; `file` and where the pickle begins in it are for messages. Time and memory
/// grow with its length.
Unpickled unpickle(std::string pickle, const std::string& file, std::uint64_t offset);

}  // namespace lockstep::internal
