// Conversions between dtypes and layouts that a program needs several times.
#pragma once

#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// Makes each conversion of a tensor once in forward and once in backward, those of the program's inputs once in all.
/// (Between the two, other copies would occupy memory.)
void share_conversions(ShardProgram& program);

}  // namespace lockstep
