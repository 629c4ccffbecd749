#include "lockstep/parallel/reduce/readiness.h"

#include <algorithm>

namespace lockstep {

namespace {

long ready_in(const EngineMemory& memory, const ShardProgram& program, const Bucket& bucket) {
    long ready = -1;
    for (const Delivery& delivery : program.deliveries)
        if (bucket.contains(delivery.parameter)) ready = std::max(ready, static_cast<long>(delivery.ready));
    const auto& arena = memory.replica(first_device).parameters[static_cast<std::size_t>(bucket.arena)];
    const std::size_t size = size_of(memory.layout(bucket.arena).dtype);
    for (std::size_t i = 0; i < program.records.size(); ++i)
        for (const Operand& operand : program.records[i].in) {
            if (!operand.buffer || operand.buffer->is_symbolic() || operand.buffer->whole() != arena) continue;
            const std::size_t begin = operand.buffer->offset_in_whole();
            if (begin < static_cast<std::size_t>(bucket.end) * size &&
                begin + operand.buffer->bytes() > static_cast<std::size_t>(bucket.begin) * size)
                ready = std::max(ready, static_cast<long>(i));
        }
    return ready;
}

}  // namespace

RecordPair ready_after(const EngineMemory& memory, const BatchProgram& batch, const Bucket& bucket) {
    return {ready_in(memory, *batch.full, bucket), ready_in(memory, *batch.last, bucket)};
}

}  // namespace lockstep
