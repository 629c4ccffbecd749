// The program of one shard: what tracing forward, loss and backward left, brought into the order in which it runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/ops/arena.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

/// A parameter's gradient: complete once record `ready` has run.
struct Delivery {
    int arena = 0, segment = 0;
    Operand gradient;
    std::size_t ready = 0;
};

/// What kind of program is traced.
enum class Pass : std::uint8_t {
    inference,     ///< forward without tape, changes nothing
    forward_only,  ///< training mode without gradients: running statistics change
    training,      ///< forward, and backward from given gradients of the outputs
    step           ///< forward, loss, backward
};

struct ShardProgram {
    std::shared_ptr<Trace> trace;
    std::vector<Operand> inputs;            ///< places of the scattered inputs; no buffer: not read
    std::vector<Operand> outputs;           ///< places of forward's outputs
    std::vector<Operand> output_gradients;  ///< places of their gradients (training)
    std::vector<Operand> input_gradients;   ///< gradients of inputs that want one; no buffer where none (training)
    Operand loss;                  ///< value of the loss, scalar of its own dtype (step); of this micro-step alone
    std::vector<Operand> weights;  ///< places where the weights of the loss come in (micro-steps)
    std::shared_ptr<const ShardProgram> weighing;  ///< computes the weights of this shard, as outputs; null without any
    std::vector<Record> records;   ///< forward [0, commit_begin), commits, backward [backward_begin, end)
    std::size_t commit_begin = 0;  ///< agreement on the status comes right before this record
    std::size_t backward_begin = 0;
    std::vector<Delivery> deliveries;
    std::string structure;                          ///< see ModelResult
    std::shared_ptr<const void> prototype;          ///< likewise
    std::shared_ptr<const void> keep;               ///< see ProgramKey
    std::vector<std::shared_ptr<Storage>> outside;  ///< storages outside the trace that records read
};

struct ShardProgramRequest {
    Device prototype;
    int threads = 1;
    bool deterministic = false;
    ConvAlgorithm convolution = default_conv_algorithm();
    int shards = 1;
    Pass pass = Pass::inference;
    NanPolicy nan_policy = NanPolicy::stop;
    bool micro_step = false;  ///< the weights of the loss come from outside, and whoever adds up the loss checks it
    std::vector<TensorMeta> inputs;
    std::vector<bool> input_wants_gradient;
    const ParameterStore* store = nullptr;
};

/// Traces `forward` (and loss and backward) for shards of the given input shapes.
ShardProgram trace_shard(const ShardProgramRequest& request, const ModelFunction& forward);

/// Fills in `program.outside`.
void note_outside(ShardProgram& program);

/// Throws InvalidArgument unless outputs have the same structure and can be gathered, and the records that span shards
/// agree in number, order, operation and shapes: `a` and `b` were traced for shards of different lengths of one batch.
void require_matching_spans(const ShardProgram& a, const ShardProgram& b);

}  // namespace lockstep
