// Which tensors of a file of torch.save are its weights.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/parallel/data/pth/stored_zip.h"
#include "lockstep/parallel/data/pth/unpickle.h"
#include "lockstep/parallel/data/pth_types.h"

namespace lockstep::internal {

/// Where a tensor's elements lie: from `offset` elements within the record on, `strides` apart.
struct PthLayout {
    const ZipRecord* record = nullptr;
    std::uint64_t offset = 0;
    std::vector<std::int64_t> strides;
};

struct StateDict {
    std::vector<PthEntry> entries;
    std::vector<PthLayout> layouts;  ///< of the entries
    std::map<std::string, std::string> unsupported;
};

/// The tensors of the dictionary that PthFile says. `directory` is what precedes the names of the archive's records,
/// `offset` where the pickle begins. Throws as PthFile does.
StateDict find_state_dict(const Unpickled& pickle, const std::string& wanted, const StoredZip& zip,
                          const std::string& directory, const std::string& file, std::uint64_t offset);

}  // namespace lockstep::internal
