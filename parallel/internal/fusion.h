// Records that pass over memory which their neighbour has just written are done along with it.
#pragma once

#include "lockstep/parallel/internal/shard_program.h"

namespace lockstep {

/// Makes one record of a ReLU and the convolution before it, and of ReLU's gradient and the gradient of the convolution
/// or pooling behind it, where nothing else uses what lies between and the backend has such a kernel. Bits stay.
void fuse_relu(ShardProgram& program);

}  // namespace lockstep
