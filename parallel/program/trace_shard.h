// Tracing: a model's forward, its loss and backward, called once for a shard of some shape, become a shard program.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/ops/model_call.h"
#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// What a wrapper wants a program for.
struct ProgramRequest {
    const ModelCall& call;
    Pass pass = Pass::inference;
    const std::vector<TensorMeta>& inputs;  ///< of the whole batch
    const std::vector<bool>& wants_gradient;
    /// For microbatches: the denominators of the loss come from outside, and the sum of the losses is checked instead
    /// of each.
    bool microbatch = false;
    /// Backward begins with a multiple of the loss that comes from outside; the loss is not checked.
    bool scaled = false;
    /// The squares of the gradients of all shards are summed (ShardProgram::squares).
    bool measured = false;
};

/// `input` with another number of rows.
TensorMeta with_rows(const TensorMeta& input, std::int64_t rows);

/// Traces the call for shards of `rows` rows. `stops_at_nan`: a loss that is not finite is reported.
ShardProgram trace_shard(const ProgramRequest& request, std::int64_t rows, const TraceSettings& settings,
                         const ParameterStore& store, bool stops_at_nan);

/// Traces forward and loss of such a call again, to be compared (trace_check.h). What the library draws or counts
/// meanwhile is as before.
ForwardTrace trace_forward_again(const ProgramRequest& request, std::int64_t rows, const TraceSettings& settings,
                                 const ParameterStore& store, bool stops_at_nan);

}  // namespace lockstep
