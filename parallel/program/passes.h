// Passes over a traced program, in the order in which trace_shard() makes them. Results are bit-identical with and
// without each.
#pragma once

#include <vector>

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// Removes records of the second runs of checkpointed parts that nothing reads, such as their results.
void remove_unread_repeats(ShardProgram& program);

/// Makes each conversion between dtypes or layouts once in forward and once in backward, those of the program's inputs
/// once in all. (Between the two, other copies would occupy memory.)
void share_conversions(ShardProgram& program);

/// Fuses two neighbouring records if a rule describes it (ops/internal/fusion_rules.h), nothing else uses the value
/// between them, and the backend has a kernel for both. Then removes records whose work all users of their value can
/// do.
void fuse_neighbours(ShardProgram& program);

/// Joins records of one operation with equal attributes if the operation allows it (Operation::joins): commits with
/// commits, and records that span shards with those next to them. A network with 18 batch normalisations has three
/// such records instead of 54: three kernels, and one exchange between ranks.
void join_alike(ShardProgram& program);

/// Postpones conversions of gradients from 16 bits to f32 that nothing in the program waits for, and makes many of them
/// by one record, if the backend makes them in separate kernels. They occupy memory until then: at most 16 MiB.
void gather_gradient_casts(ShardProgram& program);

/// Replaces runs of small operations (ops/internal/sequence.h), as of a loss on its sums, by one record each, if the
/// backend has a kernel for it. A run may skip records that do not depend on it.
void gather_sequences(ShardProgram& program);

/// A separate program for the denominators of a loss: a step of several microbatches needs all of them before its first
/// backward. It has the records of `whole`'s trace so far on which `denominators`, values of that trace, depend. Its
/// outputs are the denominators; unused inputs have no buffer. It often only reads the targets, but is all of forward
/// if a denominator depends on activations.
ShardProgram denominator_program(const ShardProgram& whole, const std::vector<Operand>& denominators);

}  // namespace lockstep
