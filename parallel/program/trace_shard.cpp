#include "lockstep/parallel/program/trace_shard.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/parallel/program/parameter_casts.h"
#include "lockstep/parallel/program/passes.h"
#include "lockstep/runtime/autocast.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/api_scope.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/internal/eager.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

Operand operand_of(const Tensor& tensor) {
    TensorMeta meta = tensor.impl()->meta;
    meta.opaque = tensor.impl()->storage->opaque;
    return {tensor.impl()->storage->buffer, meta, nullptr};
}

/// Maps leaves to parameters.
class ParameterIndex {
public:
    explicit ParameterIndex(const ParameterStore& store) {
        for (std::size_t a = 0; a < store.parameters().size(); ++a)
            for (std::size_t i = 0; i < store.parameters()[a].segments.size(); ++i)
                ids_[store.tensor(store.parameters()[a].segments[i]).impl().get()] = {static_cast<int>(a),
                                                                                      static_cast<int>(i)};
    }
    /// Nullopt for a leaf that is not a parameter of the model.
    std::optional<ParameterId> of(const Tensor& leaf) const {
        const auto found = ids_.find(leaf.impl().get());
        return found == ids_.end() ? std::nullopt : std::optional(found->second);
    }

private:
    std::map<const TensorImpl*, ParameterId> ids_;
};

/// Traces backward and notes the gradients of parameters and inputs as they become complete.
class BackwardTracer {
public:
    /// `measures`: sums the squares of the parameters' gradients.
    BackwardTracer(ShardProgram& program, const ParameterIndex& parameters, const std::vector<Tensor>& inputs,
                   bool measures)
        : program_(program),
          parameters_(parameters),
          inputs_(inputs),
          measures_(measures),
          input_gradients_(inputs.size()) {}

    void run(const std::vector<Tensor>& roots, const std::vector<Tensor>& gradients) {
        run_backward(roots, gradients, false,
                     [this](const Tensor& leaf, const Tensor& gradient) { complete(leaf, gradient); });
        const NoGrad no_grad;
        for (const Tensor& gradient : input_gradients_)
            program_.input_gradients.push_back(gradient.defined() ? operand_of(gradient.contiguous()) : Operand{});
    }
    /// Undefined if no parameter has a gradient.
    const Tensor& squares() const { return squares_; }

private:
    void complete(const Tensor& leaf, const Tensor& gradient) {
        for (std::size_t i = 0; i < inputs_.size(); ++i)
            if (inputs_[i].impl() == leaf.impl()) {
                input_gradients_[i] = gradient;
                return;
            }
        const auto parameter = parameters_.of(leaf);
        if (!parameter && program_.trace->is_differentiated(leaf)) return;
        if (!parameter) refuse(leaf);
        const Tensor own = exclusive(gradient);
        // Before the executor may sum it in place.
        if (measures_) measure(own);
        program_.deliveries.push_back({*parameter, operand_of(own), program_.trace->records().size() - 1});
    }

    /// Refuses `leaf`, which would never be updated or saved.
    [[noreturn]] void refuse(const Tensor& leaf) const {
        const auto reads_it = [&](const Record& record) {
            return std::any_of(record.in.begin(), record.in.end(),
                               [&](const Operand& in) { return in.storage && in.storage == leaf.impl()->storage; });
        };
        const auto& records = program_.forward->records;
        const auto reader = std::find_if(records.begin(), records.end(), reads_it);
        throw InvalidArgument(
            fmt::format("{}: a tensor of shape {} requires a gradient and is not a parameter of the model; list its "
                        "layer in LOCKSTEP_MEMBERS, or detach() it",
                        reader == records.end() ? "forward or loss"
                        : reader->call          ? std::string_view(reader->call)
                                                : reader->operation->name(),
                        leaf.shape().str()));
    }

    void measure(const Tensor& gradient) {
        const NoGrad no_grad;
        const std::int64_t elements = gradient.numel();
        const Tensor grains = apply_one(MeasureGradients{{.range = {.end = elements, .last = 1}}, 2},
                                        {gradient.reshape({elements}), Tensor()},
                                        TensorMeta::contiguous(DType::f64, {MeasureGradients::grains(elements)}));
        const Tensor sum = apply_one(CombineMeasures{1}, {grains}, TensorMeta::contiguous(DType::f64, {}));
        squares_ = squares_.defined() ? add(squares_, sum) : sum;
    }

    /// `gradient` as the only tensor in a row-major buffer: the executor may place that buffer in the arena.
    Tensor exclusive(const Tensor& gradient) {
        const Operand operand = operand_of(gradient);
        const bool whole = operand.buffer->is_symbolic() && operand.meta.is_contiguous() && operand.meta.offset == 0 &&
                           operand.buffer->bytes() == operand.meta.bytes();
        bool made_here = false;
        const auto& records = program_.trace->records();
        for (std::size_t i = program_.backward_begin; i < records.size(); ++i)
            for (const Operand& out : records[i].out) made_here |= out.buffer == operand.buffer;
        if (whole && made_here && taken_.insert(operand.buffer.get()).second) return gradient;
        const Tensor copy =
            apply_one(Reorder{}, {gradient}, TensorMeta::contiguous(gradient.dtype(), gradient.shape()));
        taken_.insert(copy.impl()->storage->buffer.get());
        return copy;
    }

    ShardProgram& program_;
    const ParameterIndex& parameters_;
    const std::vector<Tensor>& inputs_;
    bool measures_;
    Tensor squares_;
    std::vector<Tensor> input_gradients_;
    std::set<const Buffer*> taken_;
};

/// Squared gradients summed over all shards, each divided by its rows. `scale`: the factor of the gradients, or
/// undefined.
Tensor squares_over_shards(Tensor squares, std::int64_t rows, const Tensor& scale) {
    const NoGrad no_grad;
    if (scale.defined()) squares = div(div(squares, scale), scale);
    return sum_over_shards(squares * (1.0 / static_cast<double>(rows)));
}

/// Makes the denominators of the loss inputs of the program: stores their operands, and the program that computes this
/// shard's own.
std::vector<Tensor> take_in_denominators(ShardProgram& program, const std::vector<Loss::Term>& terms) {
    const NoGrad no_grad;
    std::vector<Record>& records = program.trace->records();
    const auto before = static_cast<std::ptrdiff_t>(records.size());
    std::vector<Operand> own;
    std::vector<Tensor> pooled;
    for (const Loss::Term& term : terms) {
        if (!term.denominator.defined()) continue;
        const TensorMeta scalar = TensorMeta::contiguous(term.denominator.dtype(), {});
        if (!is_floating(scalar.dtype))
            throw InvalidArgument(
                fmt::format("loss: a denominator is of dtype {}; expected a floating dtype, like that of numerators",
                            name_of(scalar.dtype)));
        Tensor denominator = term.denominator.detach().reshape({});
        if (!denominator.is_symbolic()) denominator = apply_one(Reorder{}, {denominator}, scalar);
        own.push_back(operand_of(denominator));
        pooled.push_back(program.trace->input(scalar));
        program.denominators.push_back(operand_of(pooled.back()));
    }
    if (!own.empty())
        program.denominator_program = std::make_shared<const ShardProgram>(denominator_program(program, own));
    records.erase(records.begin() + before, records.end());
    return pooled;
}

/// Sums the terms of the loss over all shards; returns its value and the gradients with which backward begins.
/// `pooled`: denominators that are sums already, or null. `scale`: the factor of those gradients, or undefined.
Tensor pool_loss(const std::vector<Loss::Term>& terms, const std::vector<Tensor>* pooled, const Tensor& scale,
                 bool stops_at_nan, std::vector<Tensor>& numerators, std::vector<Tensor>& gradients) {
    const NoGrad no_grad;
    std::vector<Tensor> local;
    for (const Loss::Term& term : terms) {
        if (term.numerator.numel() != 1)
            throw InvalidArgument(
                fmt::format("loss: a numerator has shape {}; expected a scalar, the sum over the rows of the shard",
                            term.numerator.shape().str()));
        local.push_back(term.numerator.detach().reshape({}));
        if (term.denominator.defined() && !pooled) local.push_back(term.denominator.detach().reshape({}));
    }
    if (local.empty())
        throw InvalidArgument("loss: it has no terms; expected nll_loss(...), a sum of losses, or similar");
    const std::vector<Tensor> sums = sum_over_shards(local);
    Tensor value;
    std::size_t next = 0, next_denominator = 0;
    for (const Loss::Term& term : terms) {
        const Tensor& numerator = sums[next++];
        Tensor gradient = Tensor::full({}, term.factor, numerator.dtype(), numerator.device());
        if (term.denominator.defined()) gradient = div(gradient, pooled ? (*pooled)[next_denominator++] : sums[next++]);
        const Tensor part = mul(numerator, gradient);
        value = value.defined() ? add(value, part) : part;
        if (term.numerator.requires_grad()) {
            numerators.push_back(term.numerator);
            if (scale.defined()) gradient = mul(gradient, scale.to(gradient.dtype()));
            gradients.push_back(gradient.to(term.numerator.dtype()).reshape(term.numerator.shape()));
        }
    }
    return pooled || !stops_at_nan ? value
                                   : apply_one(CheckFinite{}, {value}, TensorMeta::contiguous(value.dtype(), {}));
}

/// Moves records whose results only commits use after the others, because nothing in forward waits for them. (Pooled
/// statistics span shards: in the middle of forward they would delay all devices.)
void defer_to_commits(std::vector<Record>& records, const std::vector<Record>& commits) {
    std::set<const Buffer*> used_by_commits;
    for (const Record& commit : commits)
        for (const Operand& operand : commit.in) used_by_commits.insert(operand.buffer.get());
    std::vector<Record> kept;
    std::vector<Record> deferred;
    std::set<const Buffer*> used;
    for (auto record = records.rbegin(); record != records.rend(); ++record) {
        bool only_commits = is_cross_shard(*record);
        for (const Operand& out : record->out)
            only_commits &= used_by_commits.contains(out.buffer.get()) && !used.contains(out.buffer.get());
        for (const Operand& in : record->in) used.insert(in.buffer.get());
        (only_commits ? deferred : kept).push_back(std::move(*record));
    }
    records.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
    records.insert(records.end(), std::make_move_iterator(deferred.rbegin()), std::make_move_iterator(deferred.rend()));
}

/// The operations that backward visits from `roots`, in the order of their creation, as bytes.
std::string graph_of(const std::vector<Tensor>& roots) {
    std::map<std::uint64_t, const AutogradNode*> nodes;  // by number
    std::vector<const AutogradNode*> stack;
    const auto find = [&](const std::shared_ptr<AutogradNode>& node) {
        if (node && nodes.emplace(node->sequence, node.get()).second) stack.push_back(node.get());
    };
    for (const Tensor& root : roots) find(root.impl()->node);
    while (!stack.empty()) {
        const AutogradNode* node = stack.back();
        stack.pop_back();
        for (const AutogradNode::Edge& edge : node->inputs) find(edge.node);
    }
    std::map<const AutogradNode*, std::int64_t> places;
    for (const auto& entry : nodes) places.emplace(entry.second, static_cast<std::int64_t>(places.size()));
    Signature graph;
    const auto add = [&](const std::shared_ptr<AutogradNode>& node, int output, const Tensor& leaf) {
        graph.add(node ? places.at(node.get()) : -1).add(output);
        if (!leaf.defined()) return;
        const bool symbolic = leaf.is_symbolic();
        graph.add(symbolic).add(symbolic ? static_cast<std::uintptr_t>(leaf.impl()->storage->buffer->trace_id())
                                         : reinterpret_cast<std::uintptr_t>(leaf.impl().get()));
    };
    for (const auto& [number, node] : nodes) {
        graph.add(std::string_view(node->name));
        for (const AutogradNode::Edge& edge : node->inputs) add(edge.node, edge.output, edge.leaf);
    }
    for (const Tensor& root : roots)
        add(root.impl()->node, root.impl()->output_index, root.is_leaf() ? root : Tensor());
    return graph.bytes();
}

/// Throws InvalidArgument if `commits` write tensors that are not buffers of the model: copies of them would be
/// written, one on each device, which are never read or saved.
void require_own_buffers(const std::vector<Record>& commits, const ParameterStore& store) {
    std::set<const Storage*> own;
    for (const ArenaLayout& arena : store.buffers())
        for (const ArenaSegment& segment : arena.segments) own.insert(store.tensor(segment).impl()->storage.get());
    for (const Record& commit : commits)
        for (const Operand& out : commit.out)
            if (out.storage && !own.contains(out.storage.get())) {
                if (op_cast<CommitIfOk>(*commit.operation))
                    throw InvalidArgument(
                        fmt::format("{}: a tensor of shape {} is written by forward and is not a buffer of the model; "
                                    "expected a ModuleBuffer that is listed in LOCKSTEP_MEMBERS",
                                    commit.call, out.meta.shape.str()));
                throw InvalidArgument(fmt::format(
                    "{}: a tensor of shape {} is updated and is not a buffer of the model; list its layer in "
                    "LOCKSTEP_MEMBERS, or put the layer in evaluation mode",
                    call_and_operation(commit.call, commit.operation->name()), out.meta.shape.str()));
            }
}

/// The writes of a trace's commits, which were counted during tracing. The destructor reverts the counts: programs
/// write when they run.
class CountedWrites {
public:
    explicit CountedWrites(Trace& trace) : trace_(trace) {}
    CountedWrites(const CountedWrites&) = delete;
    CountedWrites& operator=(const CountedWrites&) = delete;
    ~CountedWrites() {
        for (const auto& storage : storages()) {
            --storage->writes;
            if (storage->group) --storage->group->writes;
        }
    }
    /// The storages outside the trace that are written, once for each write. The first call must precede changes of the
    /// commits.
    const std::vector<std::shared_ptr<Storage>>& storages() {
        if (!storages_) {
            storages_.emplace();
            for (const Record& commit : trace_.commits())
                for (const Operand& out : commit.out)
                    if (out.storage) storages_->push_back(out.storage);
        }
        return *storages_;
    }

private:
    Trace& trace_;
    std::optional<std::vector<std::shared_ptr<Storage>>> storages_;
};

}  // namespace

TensorMeta with_rows(const TensorMeta& input, std::int64_t rows) {
    Shape shape = input.shape;
    shape[0] = rows;
    return TensorMeta::contiguous(input.dtype, shape, true);
}

namespace {

/// Forward and loss of a shard, with the tensors from which backward begins.
struct ForwardHalf {
    std::vector<Tensor> inputs;
    std::vector<Tensor> roots, gradients;
    Tensor scale;
};

void require_trainable(const std::vector<Tensor>& roots, const ParameterStore& store) {
    if (!roots.empty()) return;
    const bool frozen = store.trainable_flags().find('1') == std::string::npos;
    throw InvalidArgument(
        fmt::format("step: the loss does not depend on a parameter that requires a gradient{}; unfreeze one with "
                    "requires_grad_(), or call forward for evaluation",
                    frozen ? " (all are frozen)" : ""));
}

/// Calls the model and the loss. Requires a TraceScope of `program.trace`.
ForwardHalf trace_forward(ShardProgram& program, const ProgramRequest& request, std::int64_t rows,
                          const ParameterStore& store, bool stops_at_nan) {
    Trace& trace = *program.trace;
    const bool wants_gradients = has_backward(request.pass);
    ForwardHalf half;
    for (std::size_t i = 0; i < request.inputs.size(); ++i) {
        half.inputs.push_back(
            trace.input(with_rows(request.inputs[i], rows), wants_gradients && request.wants_gradient[i]));
        program.inputs.push_back(operand_of(half.inputs.back()));
    }

    ModelResult result;
    if (wants_gradients) {
        result = request.call.function(half.inputs);
    } else {
        const NoGrad no_grad;
        result = request.call.function(half.inputs);
    }
    if (request.pass == Pass::step) {
        std::vector<Tensor> pooled;
        if (request.microbatch) pooled = take_in_denominators(program, result.loss);
        if (request.scaled) {
            half.scale = trace.input(TensorMeta::contiguous(DType::f64, {}));
            program.loss_scale = operand_of(half.scale);
        }
        program.loss = operand_of(pool_loss(result.loss, request.microbatch ? &pooled : nullptr, half.scale,
                                            stops_at_nan && !request.scaled, half.roots, half.gradients));
        require_trainable(half.roots, store);
    }
    for (Tensor& output : result.outputs) {
        const Tensor plain = output.contiguous();
        program.outputs.push_back(operand_of(plain));
        if (wants_gradients && plain.requires_grad()) {
            half.roots.push_back(plain);
            half.gradients.push_back(
                trace.input(TensorMeta::contiguous(plain.dtype(), plain.shape(), plain.is_batch())));
            program.output_gradients.push_back(operand_of(half.gradients.back()));
        } else {
            program.output_gradients.emplace_back();
        }
    }
    program.structure = std::move(result.structure);
    program.prototype = std::move(result.prototype);

    auto forward = std::make_shared<ForwardTrace>();
    forward->records = trace.records();
    forward->records.insert(forward->records.end(), trace.commits().begin(), trace.commits().end());
    forward->outputs = program.outputs;
    forward->graph = graph_of(half.roots);
    forward->structure = program.structure;
    program.forward = std::move(forward);
    return half;
}

}  // namespace

ShardProgram trace_shard(const ProgramRequest& request, const TracedRows& rows, const TraceSettings& settings,
                         const ParameterStore& store, bool stops_at_nan) {
    ShardProgram program;
    program.trace = std::make_shared<Trace>(settings, rows.of_batch);
    Trace& trace = *program.trace;
    const TraceScope scope(trace);
    const Autocast precision(Autocast::dtype_or(settings.autocast));
    CountedWrites writes(trace);
    const ForwardHalf half = trace_forward(program, request, rows.of_shard, store, stops_at_nan);
    require_own_buffers(trace.commits(), store);
    const std::vector<std::shared_ptr<Storage>>& written = writes.storages();
    defer_to_commits(trace.records(), trace.commits());
    program.commit_begin = trace.records().size();
    if (request.pass != Pass::inference)
        for (Record& record : trace.commits()) trace.records().push_back(std::move(record));
    program.backward_begin = trace.records().size();
    if (has_backward(request.pass)) {
        const ParameterIndex parameters(store);
        BackwardTracer tracer(program, parameters, half.inputs, request.measured);
        const std::size_t of_forward = trace.commits().size();
        tracer.run(half.roots, half.gradients);
        if (trace.commits().size() > of_forward)
            throw InvalidArgument(
                fmt::format("{}: a hook of a gradient writes a tensor of shape {} from outside; expected forward to "
                            "write it",
                            trace.commits().back().call, trace.commits().back().out[0].meta.shape.str()));
        if (tracer.squares().defined())
            program.squares = operand_of(squares_over_shards(tracer.squares(), rows.of_shard, half.scale));
    }
    program.records = std::move(trace.records());
    remove_unread_repeats(program);
    share_conversions(program);
    fuse_neighbours(program);
    gather_gradient_casts(program);
    // In a manual step, backward must read the casts of this forward, even if another forward runs in between.
    if (request.pass != Pass::training) take_parameter_casts(program, store);
    join_alike(program);
    gather_sequences(program);
    program.note_outside();
    program.note_read_back(store);
    if (request.pass != Pass::inference) program.written = written;
    return program;
}

ForwardTrace trace_forward_again(const ProgramRequest& request, const TracedRows& rows, const TraceSettings& settings,
                                 const ParameterStore& store, bool stops_at_nan) {
    ShardProgram program;
    program.trace = std::make_shared<Trace>(settings, rows.of_batch);
    const TraceScope scope(*program.trace);
    const Autocast precision(Autocast::dtype_or(settings.autocast));
    const HostRandomScope random;
    const CountedWrites writes(*program.trace);
    (void)trace_forward(program, request, rows.of_shard, store, stops_at_nan);
    return *program.forward;
}

}  // namespace lockstep
