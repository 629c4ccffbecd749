// Tracing: converts a model's forward, its loss and backward, called once for a shard of some shape, to a shard
// program.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/ops/model_call.h"
#include "lockstep/parallel/program/shard_program.h"

namespace lockstep {

/// A wrapper's request for a program.
struct ProgramRequest {
    const ModelCall& call;
    Pass pass = Pass::inference;
    const std::vector<TensorMeta>& inputs;  ///< inputs for the whole batch
    const std::vector<bool>& wants_gradient;
    /// For microbatches: the denominators of the loss are inputs, and the sum of the losses is checked instead of each.
    bool microbatch = false;
    /// Backward begins with the loss times a scale, which is an input; the loss is not checked.
    bool scaled = false;
    /// The squares of the gradients of all shards are summed (ShardProgram::squares).
    bool measured = false;
};

/// `input` with another number of rows.
TensorMeta with_rows(const TensorMeta& input, std::int64_t rows);

/// Rows of a shard, and those of all shards of its batch; the latter are unknown for microbatches.
struct TracedRows {
    std::int64_t of_shard = 0;
    std::optional<std::int64_t> of_batch = {};
    bool operator==(const TracedRows&) const = default;
};

/// Traces the call for shards of `rows` rows. `stops_at_nan`: a non-finite loss is reported.
ShardProgram trace_shard(const ProgramRequest& request, const TracedRows& rows, const TraceSettings& settings,
                         const ParameterStore& store, bool stops_at_nan);

/// Traces forward and loss of such a call again, for comparison (trace_check.h). Random draws and counters of the
/// library are restored.
ForwardTrace trace_forward_again(const ProgramRequest& request, const TracedRows& rows, const TraceSettings& settings,
                                 const ParameterStore& store, bool stops_at_nan);

}  // namespace lockstep
