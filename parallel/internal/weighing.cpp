#include "lockstep/parallel/internal/weighing.h"

#include <algorithm>
#include <set>

#include "lockstep/ops/internal/loss_operations.h"
#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// Leaves out inputs that only outputs need which nobody wants.
void narrow(Record& record, const std::set<const Buffer*>& wanted) {
    const bool nll = op_cast<NllForward>(*record.operation) != nullptr;
    if (nll && !wanted.contains(record.out[0].buffer.get())) record.in[0] = {};
}

}  // namespace

ShardProgram weighing_program(const ShardProgram& whole, const std::vector<Operand>& weights) {
    ShardProgram program;
    program.trace = whole.trace;
    program.inputs = whole.inputs;
    program.outputs = weights;
    std::set<const Buffer*> wanted;
    for (const Operand& weight : weights) wanted.insert(weight.buffer.get());
    const std::vector<Record>& records = whole.trace->records();
    for (auto record = records.rbegin(); record != records.rend(); ++record) {
        const auto& out = record->out;
        if (std::none_of(out.begin(), out.end(), [&](const Operand& o) { return wanted.contains(o.buffer.get()); }))
            continue;
        Record& kept = program.records.emplace_back(*record);
        narrow(kept, wanted);
        for (const Operand& operand : kept.in)
            if (operand.buffer) wanted.insert(operand.buffer.get());
    }
    std::reverse(program.records.begin(), program.records.end());
    for (Operand& input : program.inputs)
        if (!wanted.contains(input.buffer.get())) input.buffer = nullptr;
    program.commit_begin = program.backward_begin = program.records.size();
    note_outside(program);
    return program;
}

}  // namespace lockstep
