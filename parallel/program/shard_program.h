// The program of one shard: the traced records of forward, loss and backward, in execution order.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/ops/arena.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

/// A parameter's gradient: complete once record `ready` has run.
struct Delivery {
    ParameterId parameter;
    Operand gradient;
    std::size_t ready = 0;
};

/// A buffer of a trace that holds a parameter in another dtype or order of elements.
struct ParameterCast {
    ParameterId parameter;
    TensorMeta meta;
    int buffer = 0;  ///< trace id
};

/// A tensor outside the trace that backward reads: it must not change after forward.
struct ReadBack {
    std::shared_ptr<Storage> storage;
    std::string name;  ///< name of the parameter or buffer, or a description of the constant
};

/// Kind of a traced program.
enum class Pass : std::uint8_t {
    inference,     ///< forward without autograd, changes nothing
    forward_only,  ///< training mode without gradients: running statistics change
    training,      ///< forward, and backward from given gradients of the outputs
    step           ///< forward, loss, backward
};

/// Whether such a program has a backward.
constexpr bool has_backward(Pass pass) { return pass == Pass::training || pass == Pass::step; }

/// The trace of forward and loss, before records were moved or fused.
struct ForwardTrace {
    std::vector<Record> records;  ///< followed by the records that commit
    std::vector<Operand> outputs;
    std::string graph;      ///< the operations of backward, as bytes
    std::string structure;  ///< see ShardProgram
};

struct ShardProgram {
    std::shared_ptr<Trace> trace;
    std::shared_ptr<const ForwardTrace> forward;
    std::vector<Operand> inputs;            ///< the scattered inputs; no buffer: not read
    std::vector<Operand> outputs;           ///< forward's outputs
    std::vector<Operand> output_gradients;  ///< their gradients (training)
    /// Gradients of inputs that require one; no buffer for the others (training).
    std::vector<Operand> input_gradients;
    Operand loss;                       ///< value of the loss, scalar of its dtype (step); for this microbatch only
    std::vector<Operand> denominators;  ///< inputs for the denominators of the loss (microbatches)
    /// Squared norm of the gradients of all shards, divided by rows and summed, f64 scalar; no buffer: not measured
    /// (step).
    Operand squares;
    Operand loss_scale;  ///< input for the scale of the loss, f64; no buffer: not scaled (step)
    /// Computes the denominators of this shard, as outputs; null if it has no denominators.
    std::shared_ptr<const ShardProgram> denominator_program;
    std::vector<Record> records;   ///< forward [0, commit_begin), commits, backward [backward_begin, end)
    std::size_t commit_begin = 0;  ///< the ranks agree on the status immediately before this record
    std::size_t backward_begin = 0;
    std::vector<Delivery> deliveries;               ///< in the order of `ready`
    std::vector<ParameterCast> casts;               ///< content of the arena of casts before the first record runs
    std::string structure;                          ///< see ModelResult
    std::shared_ptr<const void> prototype;          ///< containers of the outputs
    std::shared_ptr<const void> keep;               ///< see ModelCall
    std::vector<std::shared_ptr<Storage>> outside;  ///< storages outside the trace that records read

    std::vector<ReadBack> read_back;  ///< each once
    std::vector<std::shared_ptr<Storage>>
        written;  ///< buffers of the model that the commits write, once for each write

    /// The gradient of `parameter`, or null.
    const Delivery* delivery(ParameterId parameter) const;
    /// All parameters that get one.
    std::set<ParameterId> delivered() const;
    /// Buffers that are read outside of this shard's forward and backward: results, gradients that are delivered, and
    /// inputs of records that span shards or commit.
    std::set<const Buffer*> lasting_results() const;
    /// Erases the records whose flag is set; the others keep their order.
    void erase_records(const std::vector<bool>& erased);
    /// Fills in `outside`.
    void note_outside();
    /// Fills in `read_back`.
    void note_read_back(const ParameterStore& store);
};

/// Name of the parameter or buffer that `storage` belongs to; empty if it belongs to neither.
std::string name_of_member(const ParameterStore& store, const Storage& storage);

/// Whether it reads the inputs of all shards.
inline bool is_cross_shard(const Record& record) { return record.operation->scope() == OperationScope::all_shards; }

/// A record of `operation` on these operands, for a program with these settings; nullopt if the backend has no kernel
/// for it, or only one for other layouts. `call`: see Record::call.
std::optional<Record> make_record(std::shared_ptr<const Operation> operation, std::vector<Operand> in,
                                  std::vector<Operand> out, const char* call, const TraceSettings& settings);

/// Throws InvalidArgument unless the outputs have the same structure and can be gathered, and the records that span
/// shards agree in number, order, operation and shapes: `a` and `b` were traced for shards of different lengths of one
/// batch.
void require_matching_spans(const ShardProgram& a, const ShardProgram& b);

}  // namespace lockstep
