// Memory that the commands of a schedule access.
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/runtime/memory.h"

namespace lockstep {

/// A range of a workspace, whose address depends on the instance of the schedule, or of fixed memory.
struct MemoryRef {
    int workspace = -1;              ///< shard whose workspace it is, or -1
    std::size_t offset = 0;          ///< bytes into the workspace, or into `memory`
    std::shared_ptr<Buffer> memory;  ///< fixed memory; null with workspace -1: a null pointer
    std::size_t bytes = 0;           ///< length: bytes that copies move and the ordering checker tracks
    std::ptrdiff_t first = 0;        ///< bytes from `offset` to the first element; may be negative
    Device owner;
};

/// `bytes` bytes of fixed memory from `offset` on.
inline MemoryRef fixed(const std::shared_ptr<Buffer>& memory, std::size_t offset, std::size_t bytes) {
    MemoryRef ref;
    ref.memory = memory;
    ref.offset = offset;
    ref.bytes = bytes;
    ref.owner = memory->device();
    return ref;
}
/// All of it.
inline MemoryRef fixed(const std::shared_ptr<Buffer>& memory) { return fixed(memory, 0, memory->bytes()); }

}  // namespace lockstep
