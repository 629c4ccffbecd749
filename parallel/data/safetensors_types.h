// Content of a safetensors file, as seen by its readers and writers.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/runtime/dtype.h"

namespace lockstep {

/// One tensor of a file. `offset` counts bytes from the start of the file to `bytes` bytes of dense row-major data.
struct SafetensorsEntry {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
};

/// Entries of `__metadata__`.
using SafetensorsMetadata = std::map<std::string, std::string>;

/// One tensor to write: dense row-major data on the host, owned by the caller.
struct SafetensorsTensor {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
    const void* data = nullptr;
};

}  // namespace lockstep
