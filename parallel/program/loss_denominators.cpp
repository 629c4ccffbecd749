#include "lockstep/parallel/program/passes.h"

#include <algorithm>
#include <set>

#include "lockstep/runtime/record.h"

namespace lockstep {

namespace {

/// Removes inputs that are only needed for unused outputs.
void remove_unneeded_inputs(Record& record, const std::set<const Buffer*>& wanted) {
    for (std::size_t i = 0; i < record.in.size(); ++i) {
        bool needed = false;
        for (std::size_t o = 0; o < record.out.size(); ++o)
            needed |= wanted.contains(record.out[o].buffer.get()) && record.operation->depends(o, i);
        if (!needed) record.in[i] = {};
    }
}

}  // namespace

ShardProgram denominator_program(const ShardProgram& whole, const std::vector<Operand>& denominators) {
    ShardProgram program;
    program.trace = whole.trace;
    program.inputs = whole.inputs;
    program.outputs = denominators;
    std::set<const Buffer*> wanted;
    for (const Operand& denominator : denominators) wanted.insert(denominator.buffer.get());
    const std::vector<Record>& records = whole.trace->records();
    for (auto record = records.rbegin(); record != records.rend(); ++record) {
        const auto& out = record->out;
        if (std::none_of(out.begin(), out.end(), [&](const Operand& o) { return wanted.contains(o.buffer.get()); }))
            continue;
        Record& kept = program.records.emplace_back(*record);
        remove_unneeded_inputs(kept, wanted);
        for (const Operand& operand : kept.in)
            if (operand.buffer) wanted.insert(operand.buffer.get());
    }
    std::reverse(program.records.begin(), program.records.end());
    for (Operand& input : program.inputs)
        if (!wanted.contains(input.buffer.get())) input.buffer = nullptr;
    program.commit_begin = program.backward_begin = program.records.size();
    program.note_outside();
    return program;
}

}  // namespace lockstep
