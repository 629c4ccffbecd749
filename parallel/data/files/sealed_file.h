// safetensors files with a checksum of every byte in their metadata.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/safetensors_types.h"

namespace lockstep::internal {

/// Writes tensors, metadata and their checksum to `file`; the caller calls commit(). `path` is for messages. Throws as
/// write_safetensors.
void write_sealed(AtomicFile& file, const std::filesystem::path& path, const std::vector<SafetensorsTensor>& tensors,
                  SafetensorsMetadata metadata);

/// State of a file's checksum.
enum class Seal : std::uint8_t { none, good, broken };
Seal seal_of(const InputFile& file);

}  // namespace lockstep::internal
