#include <algorithm>
#include <set>
#include <vector>

#include "lockstep/parallel/program/passes.h"

namespace lockstep {

void remove_unread_repeats(ShardProgram& program) {
    if (std::none_of(program.records.begin(), program.records.end(), [](const Record& r) { return r.repeated; }))
        return;
    std::set<const Buffer*> read;
    for (const auto* results : {&program.outputs, &program.input_gradients})
        for (const Operand& operand : *results) read.insert(operand.buffer.get());
    for (const Operand* result : {&program.loss, &program.squares}) read.insert(result->buffer.get());
    for (const Delivery& delivery : program.deliveries) read.insert(delivery.gradient.buffer.get());
    std::vector<bool> erased(program.records.size(), false);
    for (std::size_t i = program.records.size(); i-- > 0;) {
        const Record& record = program.records[i];
        erased[i] = record.repeated && std::none_of(record.out.begin(), record.out.end(), [&](const Operand& out) {
                        return out.buffer && read.contains(out.buffer.get());
                    });
        if (erased[i]) continue;
        for (const Operand& in : record.in) read.insert(in.buffer.get());
    }
    program.erase_records(erased);
}

}  // namespace lockstep
