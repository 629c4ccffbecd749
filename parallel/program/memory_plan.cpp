#include "lockstep/parallel/program/memory_plan.h"

#include <algorithm>

#include "lockstep/runtime/round_up.h"

namespace lockstep {

std::size_t plan_memory(std::vector<PlannedBuffer>& buffers) {
    constexpr std::size_t alignment = 256;
    std::vector<PlannedBuffer*> by_size;
    for (PlannedBuffer& buffer : buffers)
        if (buffer.last >= buffer.first) by_size.push_back(&buffer);
    std::stable_sort(by_size.begin(), by_size.end(), [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
    std::vector<const PlannedBuffer*> placed;  // by offset
    std::size_t total = 0;
    for (PlannedBuffer* buffer : by_size) {
        const std::size_t bytes = round_up(buffer->bytes, alignment);
        std::size_t offset = 0;
        for (const PlannedBuffer* other : placed) {
            if (other->last < buffer->first || other->first > buffer->last) continue;
            if (offset + bytes <= other->offset) break;
            offset = std::max(offset, other->offset + round_up(other->bytes, alignment));
        }
        buffer->offset = offset;
        total = std::max(total, offset + bytes);
        placed.insert(std::upper_bound(placed.begin(), placed.end(), buffer,
                                       [](const auto* a, const auto* b) { return a->offset < b->offset; }),
                      buffer);
    }
    return total;
}

}  // namespace lockstep
