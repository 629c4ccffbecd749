// A separate program for the denominators of a loss: a step of several microbatches needs all of them before its first
// backward.
#pragma once

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// The program with the records of `whole`'s trace so far on which `denominators`, values of that trace, depend. Its
/// outputs are the denominators; unused inputs have no buffer. It often only reads the targets, but is all of forward
/// if a denominator depends on activations.
ShardProgram denominator_program(const ShardProgram& whole, const std::vector<Operand>& denominators);

}  // namespace lockstep
