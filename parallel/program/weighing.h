// What the weights of a loss depend on, as a program of its own: a step of several micro-steps must know them all
// before its first backward.
#pragma once

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// The program with the records of `whole`'s trace so far that `weights`, places of that trace, depend on. Its outputs
/// are the weights; inputs that nothing reads have no buffer. Often no more than a look at the targets; all of forward
/// where a weight depends on activations.
ShardProgram weighing_program(const ShardProgram& whole, const std::vector<Operand>& weights);

}  // namespace lockstep
