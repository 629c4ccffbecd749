#include "lockstep/parallel/schedule/control_block.h"

namespace lockstep {

ControlBlock::ControlBlock(Device device, int shards)
    : memory_(
          Buffer::allocate(Stream::of(device), spacing * static_cast<std::size_t>(first_shard + shards), "control")) {
    Stream& stream = Stream::of(device);
    stream.fill(memory_->data(), 0, memory_->bytes());
    stream.synchronize();
}

}  // namespace lockstep
