// Selection of the weights among the tensors of a file of torch.save.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lockstep/parallel/data/pth/unpickle.h"
#include "lockstep/parallel/data/pth/zip_archive.h"
#include "lockstep/parallel/data/pth_types.h"

namespace lockstep::internal {

/// Location of a tensor's elements: from `offset` elements within the record, `strides` apart.
struct PthLayout {
    const ZipRecord* record = nullptr;
    std::uint64_t offset = 0;
    std::vector<std::int64_t> strides;
    bool negative = false;  ///< the tensor's values are negated
};

struct StateDict {
    std::vector<PthEntry> entries;
    std::vector<PthLayout> layouts;  ///< layouts of the entries
    std::map<std::string, std::string> unsupported;
    std::vector<std::string> value_names;
    std::map<std::string, PickleIndex, std::less<>> values;  ///< values by name
};

/// The tensors and values of the dictionary that PthFile documents. `directory` precedes the names of the archive's
/// records. Throws as PthFile.
StateDict find_state_dict(const Unpickled& pickle, const std::string& wanted, const ZipArchive& zip,
                          const std::string& directory, const std::string& file);

}  // namespace lockstep::internal
