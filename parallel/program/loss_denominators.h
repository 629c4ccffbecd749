// What the denominators of a loss depend on, as a program of its own: a step of several microbatches must know them all
// before its first backward.
#pragma once

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// The program with the records of `whole`'s trace so far that `denominators`, which lie in that trace, depend on. Its
/// outputs are the denominators; inputs that nothing reads have no buffer. Often no more than a look at the targets;
/// all of forward where a denominator depends on activations.
ShardProgram denominator_program(const ShardProgram& whole, const std::vector<Operand>& denominators);

}  // namespace lockstep
