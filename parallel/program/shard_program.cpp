#include "lockstep/parallel/program/shard_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/loss_operations.h"
#include "lockstep/parallel/program/fusion.h"
#include "lockstep/parallel/program/weighing.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/tape.h"

namespace lockstep {

namespace {

Operand operand_of(const Tensor& tensor) {
    TensorMeta meta = tensor.impl()->meta;
    meta.opaque = tensor.impl()->storage->opaque;
    return {tensor.impl()->storage->buffer, meta, nullptr};
}

/// Finds out which parameter a leaf is.
class SegmentIndex {
public:
    explicit SegmentIndex(const ParameterStore& store) {
        for (std::size_t a = 0; a < store.parameters().size(); ++a)
            for (std::size_t i = 0; i < store.parameters()[a].segments.size(); ++i)
                places_[store.tensor(store.parameters()[a].segments[i]).impl().get()] = {static_cast<int>(a),
                                                                                         static_cast<int>(i)};
    }
    /// Arena and segment, or (-1, -1) for a leaf that is no parameter of the model.
    std::pair<int, int> of(const Tensor& leaf) const {
        const auto found = places_.find(leaf.impl().get());
        return found == places_.end() ? std::pair(-1, -1) : found->second;
    }

private:
    std::map<const TensorImpl*, std::pair<int, int>> places_;
};

/// Traces backward and notes the gradients of parameters and inputs as they become complete.
class BackwardTracer {
public:
    BackwardTracer(ShardProgram& program, const SegmentIndex& segments, const std::vector<Tensor>& inputs)
        : program_(program), segments_(segments), inputs_(inputs), input_gradients_(inputs.size()) {}

    void run(const std::vector<Tensor>& roots, const std::vector<Tensor>& gradients) {
        run_backward(roots, gradients, false,
                     [this](const Tensor& leaf, const Tensor& gradient) { complete(leaf, gradient); });
        const NoGrad no_tape;
        for (const Tensor& gradient : input_gradients_)
            program_.input_gradients.push_back(gradient.defined() ? operand_of(gradient.contiguous()) : Operand{});
    }

private:
    void complete(const Tensor& leaf, const Tensor& gradient) {
        for (std::size_t i = 0; i < inputs_.size(); ++i)
            if (inputs_[i].impl() == leaf.impl()) input_gradients_[i] = gradient;
        const auto [arena, segment] = segments_.of(leaf);
        if (arena < 0) return;
        const Tensor own = exclusive(gradient);
        program_.deliveries.push_back({arena, segment, operand_of(own), program_.trace->records().size() - 1});
    }

    /// `gradient` alone in a buffer of its own, row-major: the executor lets that buffer be the arena itself.
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
    const SegmentIndex& segments_;
    const std::vector<Tensor>& inputs_;
    std::vector<Tensor> input_gradients_;
    std::set<const Buffer*> taken_;
};

/// Lets the weights of the loss come in from outside: notes the places and the program that computes this shard's own.
std::vector<Tensor> take_in_weights(ShardProgram& program, const std::vector<Loss::Term>& terms) {
    const NoGrad no_tape;
    std::vector<Record>& records = program.trace->records();
    const auto before = static_cast<std::ptrdiff_t>(records.size());
    std::vector<Operand> own;
    std::vector<Tensor> pooled;
    for (const Loss::Term& term : terms) {
        if (!term.weight.defined()) continue;
        const TensorMeta scalar = TensorMeta::contiguous(term.weight.dtype(), {});
        if (!is_floating(scalar.dtype))
            throw InvalidArgument(fmt::format("loss: a weight is of dtype {}; it must be floating, as numerators are",
                                              name_of(scalar.dtype)));
        Tensor weight = term.weight.detach().reshape({});
        if (!weight.is_symbolic()) weight = apply_one(Reorder{}, {weight}, scalar);
        own.push_back(operand_of(weight));
        pooled.push_back(program.trace->input(scalar));
        program.weights.push_back(operand_of(pooled.back()));
    }
    if (!own.empty()) program.weighing = std::make_shared<const ShardProgram>(weighing_program(program, own));
    records.erase(records.begin() + before, records.end());
    return pooled;
}

/// Sums the terms of the loss over all shards; returns its value and the gradients that backward starts from. `pooled`:
/// weights that are sums already, or null.
Tensor pool_loss(const std::vector<Loss::Term>& terms, const std::vector<Tensor>* pooled, NanPolicy nan_policy,
                 std::vector<Tensor>& numerators, std::vector<Tensor>& gradients) {
    const NoGrad no_tape;
    std::vector<Tensor> local;
    for (const Loss::Term& term : terms) {
        if (term.numerator.numel() != 1)
            throw InvalidArgument(
                fmt::format("loss: a numerator has shape {}; it must be a scalar, the sum over the rows of the shard",
                            term.numerator.shape().str()));
        local.push_back(term.numerator.detach().reshape({}));
        if (term.weight.defined() && !pooled) local.push_back(term.weight.detach().reshape({}));
    }
    if (local.empty())
        throw InvalidArgument("loss: it has no terms; return nll_loss(...), a sum of losses, or the like");
    const std::vector<Tensor> sums = sum_over_shards(local);
    Tensor value;
    std::size_t next = 0, next_weight = 0;
    for (const Loss::Term& term : terms) {
        const Tensor& numerator = sums[next++];
        Tensor gradient = Tensor::full({}, term.factor, numerator.dtype(), numerator.device());
        if (term.weight.defined()) gradient = div(gradient, pooled ? (*pooled)[next_weight++] : sums[next++]);
        const Tensor part = mul(numerator, gradient);
        value = value.defined() ? add(value, part) : part;
        if (term.numerator.requires_grad()) {
            numerators.push_back(term.numerator);
            gradients.push_back(gradient.to(term.numerator.dtype()).reshape(term.numerator.shape()));
        }
    }
    return pooled || nan_policy == NanPolicy::go_on
               ? value
               : apply_one(CheckFinite{}, {value}, TensorMeta::contiguous(value.dtype(), {}));
}

/// Moves records whose results only commits use behind the others: nothing in forward waits for them. (Pooled
/// statistics span shards: in the middle of forward they would hold all devices up.)
void defer_to_commits(std::vector<Record>& records, const std::vector<Record>& commits) {
    std::set<const Buffer*> used_by_commits;
    for (const Record& commit : commits)
        for (const Operand& operand : commit.in) used_by_commits.insert(operand.buffer.get());
    std::vector<Record> kept;
    std::vector<Record> deferred;
    std::set<const Buffer*> used;
    for (auto record = records.rbegin(); record != records.rend(); ++record) {
        bool only_commits = record->operation->span() == Span::all_shards;
        for (const Operand& out : record->out)
            only_commits &= used_by_commits.contains(out.buffer.get()) && !used.contains(out.buffer.get());
        for (const Operand& in : record->in) used.insert(in.buffer.get());
        (only_commits ? deferred : kept).push_back(std::move(*record));
    }
    records.assign(std::make_move_iterator(kept.rbegin()), std::make_move_iterator(kept.rend()));
    records.insert(records.end(), std::make_move_iterator(deferred.rbegin()), std::make_move_iterator(deferred.rend()));
}

}  // namespace

/// Storages outside the trace that records read: parameters, buffers and constants.
void note_outside(ShardProgram& program) {
    std::set<const Storage*> seen;
    for (const Record& record : program.records)
        for (const auto* side : {&record.in, &record.out})
            for (const Operand& operand : *side)
                if (operand.storage && seen.insert(operand.storage.get()).second)
                    program.outside.push_back(operand.storage);
}

ShardProgram trace_shard(const ShardProgramRequest& request, const ModelFunction& forward) {
    ShardProgram program;
    program.trace = std::make_shared<Trace>(request.prototype, request.threads, request.deterministic, request.shards,
                                            request.convolution);
    Trace& trace = *program.trace;
    const TraceScope scope(trace);
    const bool wants_gradients = request.pass == Pass::training || request.pass == Pass::step;

    std::vector<Tensor> inputs;
    for (std::size_t i = 0; i < request.inputs.size(); ++i) {
        inputs.push_back(trace.input(request.inputs[i], wants_gradients && request.input_wants_gradient[i]));
        program.inputs.push_back(operand_of(inputs.back()));
    }

    ModelResult result;
    if (wants_gradients) {
        result = forward(inputs);
    } else {
        const NoGrad no_tape;
        result = forward(inputs);
    }
    std::vector<Tensor> roots;
    std::vector<Tensor> gradients;
    if (request.pass == Pass::step) {
        std::vector<Tensor> pooled;
        if (request.micro_step) pooled = take_in_weights(program, result.loss);
        program.loss = operand_of(
            pool_loss(result.loss, request.micro_step ? &pooled : nullptr, request.nan_policy, roots, gradients));
    }
    for (Tensor& output : result.outputs) {
        const Tensor plain = output.contiguous();
        program.outputs.push_back(operand_of(plain));
        if (wants_gradients && plain.requires_grad()) {
            roots.push_back(plain);
            gradients.push_back(trace.input(TensorMeta::contiguous(plain.dtype(), plain.shape(), plain.is_batch())));
            program.output_gradients.push_back(operand_of(gradients.back()));
        } else {
            program.output_gradients.emplace_back();
        }
    }
    program.structure = std::move(result.structure);
    program.prototype = std::move(result.prototype);
    defer_to_commits(trace.records(), trace.commits());
    program.commit_begin = trace.records().size();
    if (request.pass != Pass::inference)
        for (Record& record : trace.commits()) trace.records().push_back(std::move(record));
    program.backward_begin = trace.records().size();
    if (wants_gradients) {
        const SegmentIndex segments(*request.store);
        BackwardTracer tracer(program, segments, inputs);
        tracer.run(roots, gradients);
    }
    program.records = std::move(trace.records());
    fuse_neighbours(program);
    note_outside(program);
    return program;
}

void require_matching_spans(const ShardProgram& a, const ShardProgram& b) {
    const auto spans = [](const ShardProgram& program) {
        std::vector<const Record*> found;
        for (const Record& record : program.records)
            if (record.operation->span() == Span::all_shards) found.push_back(&record);
        return found;
    };
    const auto describe = [](const ShardProgram& program) {
        return program.inputs.empty() ? std::string("()") : program.inputs.front().meta.shape.str();
    };
    const std::vector<const Record*> left = spans(a);
    const std::vector<const Record*> right = spans(b);
    const auto fail = [&](const std::string& what) {
        throw InvalidArgument(
            fmt::format("shards of input shapes {} and {} do different things across shards: {}; operations that span "
                        "shards must not depend on the length of the shard",
                        describe(a), describe(b), what));
    };
    if (a.structure != b.structure || a.outputs.size() != b.outputs.size())
        throw InvalidArgument(
            fmt::format("forward returns outputs of different structure for shards of input shapes {} and {}; they "
                        "cannot be gathered, return the same containers for all",
                        describe(a), describe(b)));
    for (std::size_t i = 0; i < a.outputs.size(); ++i) {
        const TensorMeta& one = a.outputs[i].meta;
        const TensorMeta& other = b.outputs[i].meta;
        bool alike = one.dtype == other.dtype && one.shape.dims() == other.shape.dims();
        for (int d = 1; alike && d < one.shape.dims(); ++d) alike = one.shape[d] == other.shape[d];
        if (!alike)
            throw InvalidArgument(
                fmt::format("output {} of forward is {} and {} for shards of input shapes {} and {}; to be gathered, "
                            "outputs must agree in all dimensions but the first",
                            i, one.str(), other.str(), describe(a), describe(b)));
    }
    if (left.size() != right.size()) fail(fmt::format("{} and {} operations span shards", left.size(), right.size()));
    for (std::size_t i = 0; i < left.size(); ++i) {
        Signature first, second;
        left[i]->operation->describe(first);
        right[i]->operation->describe(second);
        const std::string what =
            fmt::format("operation {} is {} and {}", i, left[i]->operation->name(), right[i]->operation->name());
        if (left[i]->operation->name() != right[i]->operation->name() || first.bytes() != second.bytes()) fail(what);
        for (std::size_t j = 0; j < left[i]->in.size(); ++j)
            if (j >= right[i]->in.size() || !left[i]->in[j].meta.same_layout(right[i]->in[j].meta))
                fail(fmt::format("operation {} ({}) takes {} and {}", i, left[i]->operation->name(),
                                 left[i]->in[j].meta.str(),
                                 j < right[i]->in.size() ? right[i]->in[j].meta.str() : "nothing"));
    }
}

}  // namespace lockstep
