#include "lockstep/parallel/program/shard_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/signature.h"

namespace lockstep {

const Delivery* ShardProgram::delivery(ParameterId parameter) const {
    const auto found = std::find_if(deliveries.begin(), deliveries.end(),
                                    [&](const Delivery& delivery) { return delivery.parameter == parameter; });
    return found == deliveries.end() ? nullptr : &*found;
}

std::set<ParameterId> ShardProgram::delivered() const {
    std::set<ParameterId> parameters;
    for (const Delivery& delivery : deliveries) parameters.insert(delivery.parameter);
    return parameters;
}

std::set<const Buffer*> ShardProgram::lasting_results() const {
    std::set<const Buffer*> lasting;
    const auto add = [&](const std::vector<Operand>& operands) {
        for (const Operand& operand : operands) lasting.insert(operand.buffer.get());
    };
    add(outputs);
    add(input_gradients);
    add({loss, squares});
    for (const Delivery& delivery : deliveries) lasting.insert(delivery.gradient.buffer.get());
    for (std::size_t i = 0; i < records.size(); ++i)
        if (is_cross_shard(records[i]) || (i >= commit_begin && i < backward_begin)) add(records[i].in);
    return lasting;
}

void ShardProgram::erase_records(const std::vector<bool>& erased) {
    std::vector<std::size_t> kept_before{0};  // for each record, and at the end
    for (const bool each : erased) kept_before.push_back(kept_before.back() + (each ? 0 : 1));
    for (Delivery& delivery : deliveries) delivery.ready = kept_before[delivery.ready + 1] - 1;
    commit_begin = kept_before[commit_begin];
    backward_begin = kept_before[backward_begin];
    std::vector<Record> kept;
    for (std::size_t i = 0; i < erased.size(); ++i)
        if (!erased[i]) kept.push_back(std::move(records[i]));
    records = std::move(kept);
}

void ShardProgram::note_outside() {
    std::set<const Storage*> seen;
    for (const Record& record : records)
        for (const auto* side : {&record.in, &record.out})
            for (const Operand& operand : *side)
                if (operand.storage && seen.insert(operand.storage.get()).second) outside.push_back(operand.storage);
}

std::string name_of_member(const ParameterStore& store, const Storage& storage) {
    for (const auto* layouts : {&store.parameters(), &store.buffers()})
        for (const ArenaLayout& layout : *layouts)
            for (const ArenaSegment& segment : layout.segments)
                if (store.tensor(segment).impl()->storage.get() == &storage) return segment.name;
    return {};
}

void ShardProgram::note_read_back(const ParameterStore& store) {
    std::set<const Storage*> seen;
    for (std::size_t i = backward_begin; i < records.size(); ++i)
        for (const Operand& operand : records[i].in) {
            if (!operand.storage || !seen.insert(operand.storage.get()).second) continue;
            std::string name = name_of_member(store, *operand.storage);
            if (name.empty())
                name = fmt::format("a constant of shape {} that {} reads", operand.meta.shape.str(),
                                   records[i].call ? std::string_view(records[i].call) : records[i].operation->name());
            read_back.push_back({operand.storage, std::move(name)});
        }
}

std::optional<Record> make_record(std::shared_ptr<const Operation> operation, std::vector<Operand> in,
                                  std::vector<Operand> out, const char* call, const TraceSettings& settings) {
    KernelTable& table = KernelTable::of(settings.prototype.kind());
    if (!table.has(*operation)) return std::nullopt;
    KernelRequest request;
    request.device = settings.prototype;
    request.threads = settings.threads;
    request.deterministic = settings.deterministic;
    request.convolution = settings.convolution;
    request.allow_tf32 = settings.allow_tf32;
    request.shards = operation->scope() == OperationScope::all_shards ? settings.shards : 1;
    for (const Operand& operand : in) request.in.push_back(operand.meta);
    for (const Operand& operand : out) request.out.push_back(operand.meta);
    Record record;
    record.asked = std::make_shared<const KernelRequest>(request);
    record.kernel = table.make(*operation, request);
    for (std::size_t i = 0; i < in.size(); ++i)
        if (in[i].buffer && !request.in[i].same_layout(in[i].meta)) return std::nullopt;
    for (std::size_t i = 0; i < out.size(); ++i)
        if (out[i].buffer && !request.out[i].same_layout(out[i].meta)) return std::nullopt;
    record.operation = std::move(operation);
    record.in = std::move(in);
    record.out = std::move(out);
    record.call = call;
    return record;
}

void require_matching_spans(const ShardProgram& a, const ShardProgram& b) {
    const auto spans = [](const ShardProgram& program) {
        std::vector<const Record*> found;
        for (const Record& record : program.records)
            if (is_cross_shard(record)) found.push_back(&record);
        return found;
    };
    const auto describe = [](const ShardProgram& program) {
        return program.inputs.empty() ? std::string("()") : program.inputs.front().meta.shape.str();
    };
    const std::vector<const Record*> left = spans(a);
    const std::vector<const Record*> right = spans(b);
    const auto fail = [&](const std::string& what) {
        throw InvalidArgument(
            fmt::format("shards of input shapes {} and {} run different operations across shards: {}; operations that "
                        "span shards must not depend on the length of the shard",
                        describe(a), describe(b), what));
    };
    if (a.structure != b.structure || a.outputs.size() != b.outputs.size())
        throw InvalidArgument(
            fmt::format("forward returns outputs of different structure for shards of input shapes {} and {}; expected "
                        "the same containers for all",
                        describe(a), describe(b)));
    for (std::size_t i = 0; i < a.outputs.size(); ++i) {
        const TensorMeta& one = a.outputs[i].meta;
        const TensorMeta& other = b.outputs[i].meta;
        bool alike = one.dtype == other.dtype && one.shape.dims() == other.shape.dims();
        for (int d = 1; alike && d < one.shape.dims(); ++d) alike = one.shape[d] == other.shape[d];
        if (!alike)
            throw InvalidArgument(
                fmt::format("output {} of forward is {} and {} for shards of input shapes {} and {}; expected the same "
                            "dimensions except the first",
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
                fail(fmt::format("operation {} ({}) has the inputs {} and {}", i, left[i]->operation->name(),
                                 left[i]->in[j].meta.str(),
                                 j < right[i]->in.size() ? right[i]->in[j].meta.str() : "nothing"));
    }
}

}  // namespace lockstep
